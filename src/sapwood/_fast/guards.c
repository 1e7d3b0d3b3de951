/* The steps of a recording's guards as a function: all of them, or a shortcut. */
#include "shortcut.h"

struct guards {
  PyObject_HEAD vectorcallfunc call;
  PyObject *rows,
      *latest; /* what the steps are read from: it owns what they point to */
  Py_ssize_t registers, count, used;
  long *found; /* registers of the used arrays */
  struct shortcut *shortcut;
  Py_ssize_t successes, waits, penalty, running;
  struct step *steps;
};

enum { ENOUGH = 16, MOST = 1024 };

/* The used arrays: those that are known, or else are in their registers. */
static PyObject *gathered(const struct guards *g, PyObject **known,
                          PyObject **registers) {
  PyObject *list = PyList_New(g->used);
  for (Py_ssize_t k = 0; list && k < g->used; k++) {
    PyObject *object = known && known[k] ? known[k] : registers[g->found[k]];
    PyList_SetItem(list, k, Py_XNewRef(object));
  }
  return list;
}

/* None, where a slot is not there any more or was being written by another thread. */
static PyObject *not_told(void) {
  if (PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError) &&
        !PyErr_ExceptionMatches(PyExc_LookupError) &&
        !PyErr_ExceptionMatches(PyExc_RuntimeError) &&
        !PyErr_ExceptionMatches(PyExc_TypeError) && /* of no closure at all */
        !PyErr_ExceptionMatches(PyExc_ValueError))  /* of a cell that is empty */
      return NULL;
    PyErr_Clear();
  }
  Py_RETURN_NONE;
}

/* All steps; where they are to make a shortcut, `b` is told what they come to. */
static int take_all(struct guards *g, PyObject **registers, struct builder *b) {
  const struct step *end = g->steps + g->count;
  for (struct step *s = g->steps; s < end; s++) {
    struct known of = {NULL, 0, 0, 0};
    int relied = 0;
    if (b) {
      of = takes_of(s->op) ? b->known[s->of] : of;
      if (s->op == OPEN && of.object && !of.sealed && !Py_IsNone(s->ask))
        of.rests = note_rests(b, s, of.object);
      relied = (s->op == ITEM || (s->op >= LENGTH && s->op <= LACKS)) && relies(b, s);
    }
    if (!take(s, g->latest, registers))
      return 0;
    if (b)
      note(b, s, end, relied, of, registers[s->at]);
  }
  return 1;
}

static PyObject *taken(struct guards *g, struct builder *b) {
  PyObject **registers = calloc((size_t)g->registers, sizeof *registers), *result;
  if (!registers)
    return PyErr_NoMemory();
  result = take_all(g, registers, b) ? gathered(g, NULL, registers) : not_told();
  for (Py_ssize_t k = 0; k < g->registers; k++)
    Py_XDECREF(registers[k]);
  free(registers);
  return result;
}

/* Take all steps, and keep the shortcut that they come to. */
static PyObject *taken_and_noted(struct guards *g) {
  struct builder b = {new_shortcut(g->count, g->registers, g->used),
                      calloc((size_t)g->registers, sizeof *b.known), 0};
  PyObject *result = taken(g, b.made && b.known ? &b : NULL);
  if (b.made && b.known && !b.failed && result && !Py_IsNone(result) && !g->shortcut &&
      (b.made->held = calloc((size_t)b.made->count + 1, sizeof result))) {
    for (Py_ssize_t k = 0; k < g->used; k++)
      b.made->found[k] = b.known[g->found[k]].object;
    g->shortcut = b.made, b.made = NULL, g->successes = 0;
  }
  free_shortcut(b.made);
  free(b.known);
  return result;
}

/* What changes of a dict is read every time from now on. */
static void drop_shortcut(struct guards *g, Py_ssize_t changed) {
  for (Py_ssize_t k = 0; changed >= 0 && k < g->count; k++)
    g->steps[k].restless |=
        relied_on(&g->steps[k], changed, &g->shortcut->relied[changed]);
  free_shortcut(g->shortcut);
  g->shortcut = NULL;
  g->penalty = g->successes >= ENOUGH ? 1 : g->penalty < MOST ? 2 * g->penalty : MOST;
  g->waits = g->penalty;
}

/* What the shortcut gives; NULL, perhaps with an error, where it does not fit. */
static PyObject *short_look(struct guards *g) {
  struct shortcut *c = g->shortcut;
  Py_ssize_t changed = unchanged(c);
  PyObject *result = NULL;
  if (changed < c->relies) {
    drop_shortcut(g, changed);
    return NULL;
  }
  if (still(c, g->latest))
    result = gathered(g, c->found, c->registers);
  let_go(c);
  if (result)
    g->successes++;
  else if (!PyErr_Occurred())
    drop_shortcut(g, -1);
  return result;
}

static PyObject *look(PyObject *self, PyObject *const *args, size_t count,
                      PyObject *named) {
  struct guards *g = (struct guards *)self;
  PyObject *result = NULL;
  (void)args;
  if (PyVectorcall_NARGS(count) || named) {
    PyErr_SetString(PyExc_TypeError, "guards are called without arguments");
    return NULL;
  }
  /* One that is under way, on another thread perhaps, has the shortcut to itself. */
  g->running++;
  if (g->running == 1 && g->shortcut)
    result = short_look(g);
  if (!result && PyErr_Occurred())
    result = not_told();
  else if (!result && g->running == 1 && !g->shortcut && --g->waits <= 0 && may_watch())
    result = taken_and_noted(g);
  else if (!result)
    result = taken(g, NULL);
  g->running--;
  return result;
}

static int is_register(const struct guards *g, long number) {
  return number >= 0 && number < g->registers;
}

static int read_step(const struct guards *g, struct step *s, PyObject *from) {
  s->op = PyLong_AsLong(item(from, 0));
  s->at = PyLong_AsLong(item(from, 1));
  s->of = PyLong_AsLong(item(from, 2));
  s->value = item(from, 3);
  s->ask = item(from, 4);
  s->relies = -1;
  for (Py_ssize_t k = 0; s->op == APART && k < PyTuple_GET_SIZE(s->value); k++)
    if (!is_register(g, PyLong_AsLong(item(s->value, k))))
      return 0;
  return s->op >= 0 && s->op < OPS && is_register(g, s->at) &&
         (s->op == LENGTH || s->op == LATEST || is_register(g, s->of));
}

static int read_rows(struct guards *g, PyObject *found) {
  for (Py_ssize_t k = 0; k < g->count; k++)
    if (!read_step(g, &g->steps[k], item(g->rows, k)))
      return 0;
  for (Py_ssize_t k = 0; k < g->used; k++) {
    g->found[k] = PyLong_AsLong(item(found, k));
    if (!is_register(g, g->found[k]))
      return 0;
  }
  return !PyErr_Occurred();
}

static int traverse(PyObject *self, visitproc visit, void *arg) {
  struct guards *g = (struct guards *)self;
  Py_VISIT(g->rows);
  Py_VISIT(g->latest);
  return 0;
}

static void discard(PyObject *self) {
  struct guards *g = (struct guards *)self;
  PyObject_GC_UnTrack(self);
  free_shortcut(g->shortcut);
  free(g->steps), free(g->found);
  Py_XDECREF(g->rows);
  Py_XDECREF(g->latest);
  Py_TYPE(self)->tp_free(self);
}

/* Nothing is cleared, as of a tuple: steps point to what the rows own. */
PyTypeObject guards_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "sapwood._fast._native.Guards",
    .tp_basicsize = sizeof(struct guards),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_vectorcall_offset = offsetof(struct guards, call),
    .tp_call = PyVectorcall_Call,
    .tp_traverse = traverse,
    .tp_dealloc = discard,
};

/* compile_guards(rows, found, latest, registers): rows are (op, at, of, value, ask),
 * and `found` are the registers of the used arrays, as in steps.py. */
PyObject *compile_guards(PyObject *module, PyObject *args) {
  PyObject *rows, *found, *latest;
  Py_ssize_t registers;
  struct guards *g;
  (void)module;
  if (!PyArg_ParseTuple(args, "O!O!O!n", &PyTuple_Type, &rows, &PyTuple_Type, &found,
                        &PyList_Type, &latest, &registers) ||
      !(g = (struct guards *)PyType_GenericAlloc(&guards_type, 0)))
    return NULL;
  g->call = look, g->registers = registers, g->penalty = 1;
  g->rows = Py_NewRef(rows), g->latest = Py_NewRef(latest);
  g->count = PyTuple_GET_SIZE(rows), g->used = PyTuple_GET_SIZE(found);
  g->steps = calloc((size_t)g->count + 1, sizeof *g->steps);
  g->found = calloc((size_t)g->used + 1, sizeof *g->found);
  if (!g->steps || !g->found)
    PyErr_NoMemory();
  else if (!read_rows(g, found) && !PyErr_Occurred())
    PyErr_SetString(PyExc_ValueError, "a step names what is no register");
  if (PyErr_Occurred())
    Py_CLEAR(g);
  return (PyObject *)g;
}

/* Have no dict watched: this interpreter does not tell of all that changes. */
PyObject *watch_nothing(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  watcher = REFUSED;
  Py_RETURN_NONE;
}
