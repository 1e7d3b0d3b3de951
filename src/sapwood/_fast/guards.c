/* The steps of a recording's guards as a function. */
#include "steps.h"

struct guards {
  PyObject_HEAD vectorcallfunc call;
  PyObject *rows,
      *latest; /* what the steps are read from: it owns what they point to */
  Py_ssize_t registers, count, used;
  long *found; /* registers of the used arrays */
  struct step *steps;
};

static PyObject *gathered(const struct guards *g, PyObject **registers) {
  PyObject *list = PyList_New(g->used);
  for (Py_ssize_t k = 0; list && k < g->used; k++)
    PyList_SetItem(list, k, Py_XNewRef(registers[g->found[k]]));
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

static int take_all(const struct guards *g, PyObject **registers) {
  for (Py_ssize_t k = 0; k < g->count; k++)
    if (!take(&g->steps[k], g->latest, registers))
      return 0;
  return 1;
}

static PyObject *look(PyObject *self, PyObject *const *args, size_t count,
                      PyObject *named) {
  const struct guards *g = (struct guards *)self;
  PyObject **registers, *result;
  (void)args;
  if (PyVectorcall_NARGS(count) || named) {
    PyErr_SetString(PyExc_TypeError, "guards are called without arguments");
    return NULL;
  }
  registers = calloc((size_t)g->registers, sizeof *registers);
  if (!registers)
    return PyErr_NoMemory();
  result = take_all(g, registers) ? gathered(g, registers) : not_told();
  for (Py_ssize_t k = 0; k < g->registers; k++)
    Py_XDECREF(registers[k]);
  free(registers);
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
  s->searches = SEARCHES;
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
  g->call = look, g->registers = registers;
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
