/* A replay like the one before it, without the interpreter.
 *
 * It is told by a tuple, once, what must be as it was, and looks at that, last at what
 * any code may change that runs meanwhile. Wherever anything is otherwise, nothing has
 * been done, and the answer is that it does not fit: Python decides then. Tensors are
 * looked at through the exchange of DLPack 1.3, which knows an address and a layout
 * without a call.
 */
#include "replay.h"

#include "call.h"
#include "fits.h"
#include "plays.h"
#include <time.h>

static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Give back what finalisers have put aside; false with an error. */
static int drained(const struct replay *r) {
  PyObject *done;
  if (!PyObject_Size(r->waiting))
    return 1;
  done = PyObject_CallNoArgs(item(at(r, QUEUE), 1));
  Py_XDECREF(done);
  return done != NULL;
}

static PyObject *played(struct replay *r, PyObject *const *call, int *begun) {
  long long began = now();
  PyObject *found = NULL, *kept = NULL, *shown;
  *begun = !drained(r);
  if (*begun || r->noted == NOTES || !is_like_before(r, call))
    return NULL;
  if (!is_read(r, &found) || !are_those(r, call) || !(kept = taken(r, call, found))) {
    Py_XDECREF(found);
    return NULL;
  }
  /* What the driver refuses has done nothing, and is tried again where it can say so.
   */
  *begun = !launched(r);
  r->pages->writes += *begun ? r->writes : 0;
  shown = *begun ? result(r, call, found) : NULL;
  Py_XDECREF(found);
  Py_XDECREF(kept);
  r->notes[2 * r->noted] = began, r->notes[2 * r->noted + 1] = now() - began;
  r->noted += *begun;
  return shown;
}

/* Whether this thread has the lock: then another call is in the middle of something. */
static int is_within(const struct replay *r) {
  PyObject *mine = PyObject_CallNoArgs(r->is_mine);
  int within = mine != Py_False;
  Py_XDECREF(mine);
  return within;
}

static PyObject *unlocked(const struct replay *r, PyObject *shown) {
  PyObject *kind, *error, *trace;
  PyErr_Fetch(&kind, &error, &trace);
  Py_XDECREF(PyObject_CallNoArgs(r->release));
  PyErr_Restore(kind, error, trace);
  return shown;
}

/* NULL without an error where a call does not fit; what went wrong once it was launched
 * is an error, and so is what interrupts the waiting for others. */
static PyObject *replayed(struct replay *r, PyObject *const *call, Py_ssize_t count) {
  PyObject *mine, *shown = NULL;
  int begun = 0;
  if (count != r->count || is_within(r) || !(mine = PyObject_CallNoArgs(r->acquire)))
    return NULL;
  shown = played(r, call, &begun);
  shown = unlocked(r, shown);
  Py_XDECREF(mine);
  if (!shown && !begun && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
    PyErr_Clear();
  return shown;
}

static PyObject *called_again(PyObject *self, PyObject *const *args, size_t count,
                              PyObject *named) {
  struct replay *r = (struct replay *)self;
  PyObject *shown = named ? NULL : replayed(r, args, PyVectorcall_NARGS(count));
  return shown || PyErr_Occurred() ? shown : Py_NewRef(at(r, MISS));
}

/* What is noted of the replays since it was asked last: when, and for how long. */
static PyObject *noted(PyObject *self, PyObject *unused) {
  struct replay *r = (struct replay *)self;
  PyObject *list = PyList_New(2 * r->noted);
  (void)unused;
  for (Py_ssize_t k = 0; list && k < 2 * r->noted; k++)
    PyList_SetItem(list, k, PyLong_FromLongLong(r->notes[k]));
  if (list)
    r->noted = 0;
  return list;
}

/* Making one. */

static void discard(PyObject *self) {
  struct replay *r = (struct replay *)self;
  PyObject_GC_UnTrack(self);
  free(r->arguments), free(r->lows), free(r->copies), free(r->makers), free(r->uses);
  free(r->order), free(r->words);
  Py_XDECREF(r->live);
  Py_XDECREF(r->claimed);
  Py_XDECREF(r->rivalled);
  Py_XDECREF(r->spec);
  Py_TYPE(self)->tp_free(self);
}

static int traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(((struct replay *)self)->spec);
  return 0;
}

static PyMethodDef methods[] = {{"noted", noted, METH_NOARGS, NULL},
                                {NULL, NULL, 0, NULL}};

/* Nothing is cleared, as of a tuple: all points to what the specification owns. */
PyTypeObject replay_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "sapwood._fast._native.Replay",
    .tp_basicsize = sizeof(struct replay),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_vectorcall_offset = offsetof(struct replay, call),
    .tp_call = PyVectorcall_Call,
    .tp_methods = methods,
    .tp_traverse = traverse,
    .tp_dealloc = discard,
};

/* (length, fixed, words, within, behind), of words (node, where). */
static void read_argument(struct argument *one, PyObject *from) {
  one->length = number(from, 0), one->fixed = item(from, 1) == Py_True;
  one->within = PyLong_AsSsize_t(item(from, 3));
  one->behind = PyLong_AsLongLong(item(from, 4));
}

/* The words of each copy, of all arguments. */
static void read_words(struct replay *r) {
  struct word *next = r->words;
  for (Py_ssize_t n = 0; n < r->nodes; n++) {
    r->copies[n].words = next;
    for (Py_ssize_t k = 0; k < r->count; k++) {
      PyObject *words = item(item(at(r, GIVEN), k), 2);
      for (Py_ssize_t w = 0; w < PyTuple_GET_SIZE(words); w++) {
        if ((Py_ssize_t)number(item(words, w), 0) != n)
          continue;
        next->at = (uint64_t *)number(item(words, w), 1), next->argument = k;
        next++;
      }
    }
    r->copies[n].used = next - r->copies[n].words;
  }
}

static void read_numbers(uint64_t *to, PyObject *from) {
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(from); k++)
    to[k] = number(from, k);
}

/* (ordinal, stream, launch, set, context_of, exec, context, nodes, what they are of,
 * what launches in the place of that), of nodes (node, params). */
static void read_native(struct replay *r, PyObject *from) {
  PyObject *nodes = item(from, 7);
  r->ordinal = (int32_t)number(from, 0);
  r->stream = (void *)number(from, 1);
  r->launch = (int (*)(void *, void *))number(from, 2);
  r->set = (int (*)(void *, void *, const void *))number(from, 3);
  r->context_of = (int (*)(void **))number(from, 4);
  r->exec = (void *)number(from, 5), r->context = (void *)number(from, 6);
  r->launcher = item(from, 9);
  for (Py_ssize_t n = 0; n < r->nodes; n++) {
    PyObject *node = item(nodes, n);
    struct copies *c = &r->copies[n];
    c->node = (void *)number(node, 0), c->params = (void *)number(node, 1);
  }
}

/* What is looked at by every call, without asking tuples for it each time. */
static void read_uses(struct replay *r) {
  PyObject *held = at(r, HELD), *lock = at(r, LOCK);
  r->acquire = item(lock, 0), r->release = item(lock, 1), r->is_mine = item(lock, 2);
  r->waiting = item(at(r, QUEUE), 0);
  for (Py_ssize_t k = 0; k < r->kept; k++) {
    r->uses[k].object = (PyObject *)number(item(held, 0), k);
    r->uses[k].references = (Py_ssize_t)number(item(held, 1), k);
  }
}

/* What is kept is known by number: nobody else is to own it. */
static void read_makers(struct replay *r) {
  for (Py_ssize_t k = 0; k < r->made; k++) {
    PyObject *from = item(at(r, MAKERS), k);
    struct maker *m = &r->makers[k];
    int takes = PyTuple_GET_SIZE(from) > 1;
    m->function = takes ? item(from, 0) : (PyObject *)number(from, 0);
    m->argument = takes ? (PyObject *)number(from, 1) : NULL;
  }
}

/* Note the state that is looked at; false where it is of another class than C knows. */
static int read_state(struct replay *r) {
  PyObject *state = borrowed(item(at(r, STATE), 0));
  const struct {
    PyObject *object;
    PyTypeObject *type;
  } wanted[] = {{state, replay_state_type},
                {at(r, STREAM_EPOCH), epoch_type},
                {at(r, GUARDS), guard_state_type},
                {at(r, RECORDINGS), recordings_type},
                {at(r, PAGES), page_type},
                {item(at(r, PROBES), 0), &probe_type},
                {item(at(r, PROBES), 1), &probe_type}};
  for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++)
    if (!wanted[k].object || !PyObject_TypeCheck(wanted[k].object, wanted[k].type)) {
      PyErr_Format(PyExc_TypeError, "a replay reads a %s", wanted[k].type->tp_name);
      return 0;
    }
  r->stream_epoch = (struct stream_epoch *)at(r, STREAM_EPOCH);
  r->guards = (struct guard_state *)at(r, GUARDS);
  r->recordings = (struct recordings_state *)at(r, RECORDINGS);
  r->pages = (struct page_state *)at(r, PAGES);
  r->given = (const struct probe *)item(at(r, PROBES), 0);
  r->seen = (const struct probe *)item(at(r, PROBES), 1);
  r->read = r->seen->count;
  r->writes = PyLong_AsLongLong(item(at(r, MASKS), 2));
  r->epoch = PyLong_AsLongLong(item(at(r, STATE), 1));
  if (r->given->count == r->count)
    return 1;
  PyErr_SetString(PyExc_ValueError, "a replay knows each of its arguments");
  return 0;
}

/* Read the sizes of all parts, and make room for them; false with an error. */
static int read_sizes(struct replay *r) {
  size_t numbers, words = 1;
  for (int k = 0; k < PLACES; k++)
    r->parts[k] = item(r->spec, k);
  r->count = PyTuple_GET_SIZE(at(r, GIVEN));
  r->bound = (Py_ssize_t)number(at(r, SHAPE), 1);
  r->made = PyTuple_GET_SIZE(at(r, MAKERS));
  r->others = PyTuple_GET_SIZE(item(at(r, OTHERS), 0));
  r->nodes = PyTuple_GET_SIZE(item(at(r, NATIVE), 7));
  r->kept = PyTuple_GET_SIZE(item(at(r, HELD), 0));
  r->alone = r->made == 1 && !r->bound && !PyTuple_GET_SIZE(at(r, PICKS)) &&
             Py_IsNone(item(at(r, SHAPE), 0));
  numbers = (size_t)(r->count + 2 * r->others) + 1;
  for (Py_ssize_t k = 0; k < r->count; k++)
    words += (size_t)PyTuple_GET_SIZE(item(item(at(r, GIVEN), k), 2));
  r->arguments = calloc((size_t)r->count + 1, sizeof *r->arguments);
  r->copies = calloc((size_t)r->nodes + 1, sizeof *r->copies);
  r->lows = calloc(numbers, sizeof *r->lows);
  r->order = calloc((size_t)r->count + 1, sizeof *r->order);
  r->words = calloc(words, sizeof *r->words);
  r->makers = calloc((size_t)r->made + 1, sizeof *r->makers);
  r->uses = calloc((size_t)r->kept + 1, sizeof *r->uses);
  r->live = Py_NewRef(Py_None), r->claimed = Py_NewRef(Py_None);
  r->rivalled = Py_NewRef(Py_None);
  if (r->arguments && r->copies && r->lows && r->makers && r->uses && r->order &&
      r->words)
    return 1;
  PyErr_NoMemory();
  return 0;
}

static void read_all(struct replay *r) {
  r->starts = r->lows + r->count;
  r->ends = r->starts + r->others;
  for (Py_ssize_t k = 0; k < r->count; k++) {
    read_argument(&r->arguments[k], item(at(r, GIVEN), k));
    r->order[k] = k;
  }
  read_native(r, at(r, NATIVE));
  read_words(r), read_uses(r), read_makers(r);
  read_numbers(r->starts, item(at(r, OTHERS), 0));
  read_numbers(r->ends, item(at(r, OTHERS), 1));
}

/* compile_replay(spec): what replays, or gives the sentinel, when it is called with a
 * call's arguments, and tells what it did. */
PyObject *compile_replay(PyObject *module, PyObject *args) {
  PyObject *spec;
  struct replay *r;
  (void)module;
  if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &spec))
    return NULL;
  if (PyTuple_GET_SIZE(spec) != PLACES) {
    PyErr_Format(PyExc_ValueError, "a replay is made of %d parts", PLACES);
    return NULL;
  }
  if (!(r = (struct replay *)PyType_GenericAlloc(&replay_type, 0)))
    return NULL;
  r->call = called_again, r->spec = Py_NewRef(spec);
  if (read_sizes(r) && read_state(r))
    read_all(r);
  if (PyErr_Occurred()) {
    Py_DECREF(r);
    return NULL;
  }
  return (PyObject *)r;
}
