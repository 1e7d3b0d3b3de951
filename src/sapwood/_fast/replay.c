/* A replay like the one before it, without the interpreter: `FastReplay.play`, in C.
 *
 * It is told by a tuple, once, what must be as it was, and looks at that as `play`
 * does, last at what any code may change that runs meanwhile. Wherever anything is
 * otherwise, nothing has been done, and the answer is that it does not fit: `play` is
 * asked then. Tensors are looked at through the exchange of DLPack 1.3, which knows an
 * address and a layout without a call.
 */
#define _POSIX_C_SOURCE 199309L
#include "replay_call.h"
#include "replay_does.h"
#include "replay_fits.h"
#include <time.h>

static const char name[] = "sapwood.again";

static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Give back what finalisers have put aside; false with an error. */
static int drained(const struct again *a) {
  Object *done;
  if (!PyObject_Size(a->waiting))
    return 1;
  done = PyObject_CallNoArgs(item(at(a, QUEUE), 1));
  Py_DecRef(done);
  return done != NULL;
}

static Object *played(struct again *a, Object *const *call, int *begun) {
  long long began = now();
  Object *found = NULL, *kept = NULL, *shown;
  *begun = !drained(a);
  if (*begun || a->noted == NOTES || !is_like_before(a, call))
    return NULL;
  if (!is_read(a, &found) || !are_those(a, call) || !(kept = taken(a))) {
    Py_DecRef(found);
    return NULL;
  }
  /* What the driver refuses has done nothing, and is tried again where it can say so. */
  *begun = !launched(a);
  shown = *begun ? result(a, call, found) : NULL;
  Py_DecRef(found);
  Py_DecRef(kept);
  a->notes[2 * a->noted] = began, a->notes[2 * a->noted + 1] = now() - began;
  a->noted += *begun;
  return shown;
}

/* Whether this thread has the lock: then another call is in the middle of something. */
static int is_within(const struct again *a) {
  Object *mine = PyObject_CallNoArgs(a->is_mine);
  int within = mine != &_Py_FalseStruct;
  Py_DecRef(mine);
  return within;
}

static Object *unlocked(const struct again *a, Object *shown) {
  Object *kind, *error, *trace;
  PyErr_Fetch(&kind, &error, &trace);
  Py_DecRef(PyObject_CallNoArgs(a->release));
  PyErr_Restore(kind, error, trace);
  return shown;
}

/* NULL without an error where a call does not fit; what went wrong once it was launched
 * is an error, and so is what interrupts the waiting for others. */
static Object *replayed(struct again *a, Object *const *call, Size count) {
  Object *mine, *shown = NULL;
  int begun = 0;
  if (count != a->count || is_within(a) || !(mine = PyObject_CallNoArgs(a->acquire)))
    return NULL;
  shown = played(a, call, &begun);
  shown = unlocked(a, shown);
  Py_DecRef(mine);
  if (!shown && !begun && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
    PyErr_Clear();
  return shown;
}

static Object *again(Object *self, Object *const *args, Size count) {
  struct again *a = PyCapsule_GetPointer(item(self, 0), name);
  Object *shown = NULL;
  if (count == 2 && !PyDict_Size(args[1]) && PyTuple_Size(args[0]) == a->count) {
    Object *call[a->count + 1];
    for (Size k = 0; k < a->count; k++)
      call[k] = item(args[0], k);
    shown = replayed(a, call, a->count);
  }
  return shown || PyErr_Occurred() ? shown : given(at(a, MISS));
}

static struct again *again_of(Object *play) {
  if (play->type != &PyCFunction_Type ||
      PyCFunction_GetFunction(play) != (void (*)(void))again)
    return NULL;
  return PyCapsule_GetPointer(item(PyCFunction_GetSelf(play), 0), name);
}

/* What is noted of the replays since it was asked last: when, and for how long. */
static Object *noted(Object *self, Object *unused) {
  struct again *a = PyCapsule_GetPointer(item(self, 0), name);
  Object *list = PyList_New(2 * a->noted);
  (void)unused;
  for (Size k = 0; list && k < 2 * a->noted; k++)
    PyList_SetItem(list, k, PyLong_FromLongLong(a->notes[k]));
  if (list)
    a->noted = 0;
  return list;
}

/* Making one. */

static void discard_again(struct again *a) {
  for (Size k = 0; a->arguments && k < a->count; k++)
    free(a->arguments[k].known.seen.shape);
  for (Size k = 0; a->known && k < a->read; k++)
    free(a->known[k].seen.shape);
  Py_DecRef(a->live);
  Py_DecRef(a->claimed);
  Py_DecRef(a->rivalled);
  free(a->arguments), free(a->known), free(a->lows), free(a->copies), free(a->makers);
  free(a->uses), free(a);
}

static void discard(Object *capsule) {
  discard_again(PyCapsule_GetPointer(capsule, name));
}

static int keep_looks(struct known *known, const Tensor *seen) {
  size_t size = (size_t)seen->dims * sizeof *seen->shape;
  int64_t *both = malloc(2 * size + 1);
  if (!both)
    return 0;
  known->seen = *seen;
  known->seen.shape = both, known->seen.strides = both + seen->dims;
  memcpy(known->seen.shape, seen->shape, size);
  memcpy(known->seen.strides, seen->strides, size);
  return 1;
}

static int keep_flags(const struct again *a, struct known *known, Object *array) {
  known->flags = flags_of(a, array);
  return known->flags >= 0;
}

static int read_known(const struct again *a, struct known *known, Object *array) {
  Tensor told, seen;
  if (a->exchange->look(array, &told) || !is_seen(a, array, &seen))
    return 0;
  known->lazy = a->kinds && told.code == COMPLEX;
  return keep_looks(known, &seen) && (!known->lazy || keep_flags(a, known, array));
}

/* (reference, address, length, fixed, words), of words (node, where); the tensor is one
 * that looks like it. */
static int read_argument(struct again *a, struct argument *arg, Object *from,
                         Object *tensor) {
  Object *words = item(from, 4);
  Tensor seen;
  arg->reference = item(from, 0), arg->class = (Object *)tensor->type;
  arg->address = number(from, 1), arg->length = number(from, 2);
  arg->fixed = item(from, 3) == &_Py_TrueStruct;
  arg->used = PyTuple_Size(words);
  for (Size w = 0; w < arg->used && w < WORDS; w++) {
    arg->words[w].node = (Size)number(item(words, w), 0);
    arg->words[w].at = (uint64_t *)number(item(words, w), 1);
  }
  if (arg->used > WORDS || a->exchange->look(tensor, &seen))
    return 0;
  arg->known.lazy = a->kinds && seen.code == COMPLEX;
  return keep_looks(&arg->known, &seen) && keep_flags(a, &arg->known, tensor);
}

static void read_numbers(uint64_t *to, Object *from) {
  for (Size k = 0; k < PyTuple_Size(from); k++)
    to[k] = number(from, k);
}

/* (exchange, ordinal, stream, launch, set, context_of, exec, context, nodes, quick,
 * inside), of nodes (node, params). */
static void read_native(struct again *a, Object *from) {
  Object *nodes = item(from, 8), *quick = item(from, 9);
  a->exchange = (const struct exchange *)number(from, 0);
  a->ordinal = (int32_t)number(from, 1);
  a->stream = (void *)number(from, 2);
  a->launch = (int (*)(void *, void *))number(from, 3);
  a->set = (int (*)(void *, void *, const void *))number(from, 4);
  a->context_of = (int (*)(void **))number(from, 5);
  a->exec = (void *)number(from, 6), a->context = (void *)number(from, 7);
  if (PyTuple_Size(quick)) {
    a->quick.data = (int (*)(const void *, void **))number(quick, 0);
    a->quick.dims = (int (*)(const void *, int64_t *))number(quick, 1);
    a->quick.shape = (int (*)(const void *, int64_t **))number(quick, 2);
    a->quick.strides = (int (*)(const void *, int64_t **))number(quick, 3);
    a->quick.dtype = (int (*)(const void *, int32_t *))number(quick, 4);
  }
  a->inside = (Size)number(from, 10);
  for (Size n = 0; n < a->nodes; n++) {
    Object *node = item(nodes, n);
    struct copies *c = &a->copies[n];
    c->node = (void *)number(node, 0), c->params = (void *)number(node, 1);
  }
}

/* What is looked at by every call, without asking tuples for it each time. */
static void read_uses(struct again *a) {
  Object *held = at(a, HELD), *lock = at(a, LOCK);
  a->acquire = item(lock, 0), a->release = item(lock, 1), a->is_mine = item(lock, 2);
  a->waiting = item(at(a, QUEUE), 0);
  for (int k = 0; k < SLOTS_READ; k++)
    a->slots[k] = (Size)number(at(a, SLOTS), k);
  for (Size k = 0; k < a->kept; k++) {
    a->uses[k].object = (Object *)number(item(held, 0), k);
    a->uses[k].references = (Size)number(item(held, 1), k);
  }
}

/* What is kept is known by number: nobody else is to own it. */
static void read_makers(struct again *a) {
  for (Size k = 0; k < a->made; k++) {
    Object *from = item(at(a, MAKERS), k);
    struct maker *m = &a->makers[k];
    m->count = PyTuple_Size(from) - 1;
    m->function = m->count ? item(from, 0) : (Object *)number(from, 0);
    for (Size n = 0; n < m->count; n++)
      m->arguments[n] = n ? item(from, n + 1) : (Object *)number(from, 1);
  }
}

/* Whether nothing is made of what the function reads: then it need not be owned. */
static int only_reads(const struct again *a) {
  Object *picks = at(a, PICKS);
  Size last = a->made + a->count;
  if (!a->quick.data || a->bound || PyTuple_Size(item(at(a, MARKS), 1)))
    return 0;
  for (Size k = 0; k < a->read; k++)
    if (a->known[k].lazy)
      return 0;
  last += PyTuple_Size(picks) ? PyTuple_Size(item(picks, 0)) : 0;
  for (Size k = 0; PyTuple_Size(picks) && k < PyTuple_Size(item(picks, 1)); k++)
    if ((Size)number(item(picks, 1), k) >= last)
      return 0;
  return 1;
}

static void read_asked(struct again *a) {
  Object *look = at(a, LOOK), *self = NULL;
  if (look->type == &PyCFunction_Type && only_reads(a))
    self = PyCFunction_GetSelf(look);
  if (self && self->type == &PyTuple_Type && PyTuple_Size(self))
    a->asked = PyCapsule_GetPointer(item(self, 0), STEPS);
  if (!a->asked && PyErr_Occurred())
    PyErr_Clear(); /* another function */
}

static struct again *new_again(Object *spec) {
  struct again *a = calloc(1, sizeof *a);
  size_t words;
  if (!a)
    return NULL;
  for (int k = 0; k < PLACES; k++)
    a->parts[k] = item(spec, k);
  a->count = PyTuple_Size(at(a, GIVEN)), a->read = PyTuple_Size(item(at(a, MARKS), 0));
  a->bound = (Size)number(at(a, SHAPE), 1);
  a->made = PyTuple_Size(at(a, MAKERS)), a->kinds = PyTuple_Size(at(a, FLAGS));
  a->grad = a->kinds && (a->read == 0 || PyTuple_Size(item(at(a, MARKS), 1)));
  a->others = PyTuple_Size(item(at(a, OTHERS), 0));
  a->nodes = PyTuple_Size(item(at(a, NATIVE), 8));
  a->kept = PyTuple_Size(item(at(a, HELD), 0));
  a->alone = a->made == 1 && !a->bound && !PyTuple_Size(at(a, PICKS)) &&
             is_none(item(at(a, SHAPE), 0));
  words = (size_t)(a->count + 2 * a->others + a->read) + 1;
  a->arguments = calloc((size_t)a->count + 1, sizeof *a->arguments);
  a->known = calloc((size_t)a->read + 1, sizeof *a->known);
  a->copies = calloc((size_t)a->nodes + 1, sizeof *a->copies);
  a->lows = calloc(words, sizeof *a->lows);
  a->makers = calloc((size_t)a->made + 1, sizeof *a->makers);
  a->uses = calloc((size_t)a->kept + 1, sizeof *a->uses);
  a->live = given(&_Py_NoneStruct), a->claimed = given(&_Py_NoneStruct);
  a->rivalled = given(&_Py_NoneStruct);
  if (a->arguments && a->known && a->copies && a->lows && a->makers && a->uses)
    return a;
  discard_again(a);
  return NULL;
}

/* The arguments, and what the function reads behind them; false where one of them is
 * not to be known by its looks. */
static int read_looks(struct again *a, Object *tensors) {
  for (Size k = 0; k < a->count; k++)
    if (!read_argument(a, &a->arguments[k], item(at(a, GIVEN), k), item(tensors, k)))
      return 0;
  for (Size k = 0; k < a->read; k++)
    if (!read_known(a, &a->known[k], item(tensors, a->count + k)))
      return 0;
  return !PyErr_Occurred();
}

static void read_all(struct again *a) {
  a->starts = a->lows + a->count;
  a->ends = a->starts + a->others, a->marks = a->ends + a->others;
  read_native(a, at(a, NATIVE));
  read_uses(a), read_makers(a);
  read_numbers(a->starts, item(at(a, OTHERS), 0));
  read_numbers(a->ends, item(at(a, OTHERS), 1));
  read_numbers(a->marks, item(at(a, MARKS), 0));
}

static Method plays = {"again", (Object * (*)(Object *, Object *))(void (*)(void)) again,
                      ARGUMENTS, NULL};
static Method tells = {"noted", noted, NO_ARGUMENTS, NULL};

/* Two built-in functions: one replays, or gives the sentinel; one tells what it did. A
 * tuple owns what the specification refers to, so that the collector of cycles sees it.
 * None where tensors, of the arguments and then of what is read, are not to be known.
 */
EXPORT Object *sapwood_again(Object *spec, Object *tensors) {
  struct again *a = new_again(spec);
  Object *capsule, *self, *both = NULL;
  if (!a)
    return PyErr_NoMemory();
  read_all(a);
  if (PyErr_Occurred()) {
    discard_again(a);
    return NULL;
  }
  if (!read_looks(a, tensors)) {
    discard_again(a);
    PyErr_Clear();
    return given(&_Py_NoneStruct);
  }
  read_asked(a);
  if (!(capsule = PyCapsule_New(a, name, discard))) {
    discard_again(a);
    return NULL;
  }
  self = PyTuple_Pack(2, capsule, spec);
  Py_DecRef(capsule);
  if (self) {
    Object *one = PyCFunction_NewEx(&plays, self, NULL);
    Object *other = PyCFunction_NewEx(&tells, self, NULL);
    both = one && other ? PyTuple_Pack(2, one, other) : NULL;
    Py_DecRef(one);
    Py_DecRef(other);
  }
  Py_DecRef(self);
  return both;
}
