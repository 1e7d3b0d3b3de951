/* What says of arrays, again and again, whether they look as some did, and where. */
#include "probe.h"

#include <structmember.h>

/* Whether the framework is in the mode in which arrays were looked at. */
static int is_mode_same(const struct probe *p) {
  PyObject *now = PyObject_CallNoArgs(p->mode);
  Py_XDECREF(now); /* if any: True or False */
  return now == (p->grad ? Py_True : Py_False);
}

/* Where arrays are, `lows` itself if they are the same ones; NULL where one of them
 * looks otherwise, perhaps with an error. */
static PyObject *lows_of(const struct probe *p, PyObject *arrays) {
  PyObject *lows;
  int all = 1;
  if (PySequence_Fast_GET_SIZE(arrays) != p->count || !is_mode_same(p) ||
      !(lows = PyTuple_New(p->count)))
    return NULL;
  for (Py_ssize_t k = 0; k < p->count; k++) {
    PyObject *array = PySequence_Fast_GET_ITEM(arrays, k), *low = NULL;
    uint64_t address = 0;
    int same = 0;
    if (is_alike(p, k, array, &address, &same) &&
        flags_of(p, array) == p->known[k].flags)
      low = PyLong_FromUnsignedLongLong(address);
    if (!low) {
      Py_DECREF(lows);
      return NULL;
    }
    PyTuple_SET_ITEM(lows, k, low);
    all &= same;
  }
  if (!all)
    return lows;
  Py_DECREF(lows);
  return Py_NewRef(p->lows);
}

static PyObject *called(PyObject *self, PyObject *args, PyObject *named) {
  PyObject *given, *arrays, *lows;
  (void)named;
  if (!PyArg_ParseTuple(args, "O", &given) ||
      !(arrays = PySequence_Fast(given, "arrays come as a list or tuple")))
    return NULL;
  lows = lows_of((struct probe *)self, arrays);
  Py_DECREF(arrays);
  /* What cannot be looked at looks otherwise. */
  if (!lows && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
    PyErr_Clear();
  return lows || PyErr_Occurred() ? lows : Py_NewRef(Py_None);
}

static void discard(PyObject *self) {
  struct probe *p = (struct probe *)self;
  for (Py_ssize_t k = 0; p->known && k < p->count; k++) {
    free(p->known[k].seen.shape);
    Py_XDECREF(p->known[k].reference);
    Py_XDECREF(p->known[k].class);
  }
  free(p->known);
  Py_XDECREF(p->flags);
  Py_XDECREF(p->mode);
  Py_XDECREF(p->lows);
  Py_TYPE(self)->tp_free(self);
}

static PyMemberDef members[] = {
    {"lows", T_OBJECT_EX, offsetof(struct probe, lows), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};

PyTypeObject probe_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "sapwood._fast._native.Probe",
    .tp_basicsize = sizeof(struct probe),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_call = called,
    .tp_members = members,
    .tp_dealloc = discard,
};

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

static int keep(const struct probe *p, struct known *known, PyObject *array) {
  Tensor seen;
  if (!(known->reference = PyWeakref_NewRef(array, NULL)) ||
      p->exchange->look(array, &seen) || !keep_looks(known, &seen))
    return 0;
  known->class = Py_NewRef((PyObject *)Py_TYPE(array));
  known->address = (uint64_t)seen.data + seen.offset;
  known->lazy = PyTuple_GET_SIZE(p->flags) && seen.code == COMPLEX;
  known->flags = flags_of(p, array);
  return known->flags >= 0 &&
         !(p->quick.data &&
           p->quick.dtype((const char *)array + p->inside, &known->dtype));
}

static int keep_all(struct probe *p, PyObject *arrays) {
  PyObject *mode = PyObject_CallNoArgs(p->mode);
  Py_XDECREF(mode);
  p->grad = mode == Py_True;
  if (!mode || !(p->known = calloc((size_t)p->count + 1, sizeof *p->known)))
    return 0;
  for (Py_ssize_t k = 0; k < p->count; k++) {
    PyObject *low;
    if (!keep(p, &p->known[k], item(arrays, k)) ||
        !(low = PyLong_FromUnsignedLongLong(p->known[k].address)))
      return 0;
    PyTuple_SET_ITEM(p->lows, k, low);
  }
  return 1;
}

static void read_quick(struct quick *q, PyObject *from) {
  /* As numbers: C makes no pointer to a function of one to an object. */
  uintptr_t at[5] = {0};
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(from) && k < 5; k++)
    at[k] = (uintptr_t)PyLong_AsVoidPtr(item(from, k));
  q->data = (int (*)(const void *, void **))at[0];
  q->dims = (int (*)(const void *, int64_t *))at[1];
  q->shape = (int (*)(const void *, int64_t **))at[2];
  q->strides = (int (*)(const void *, int64_t **))at[3];
  q->dtype = (int (*)(const void *, int32_t *))at[4];
}

/* make_probe(table, quick, inside, flags, mode, vector, arrays): what is called with
 * arrays, and gives where they are, or None where one of them looks otherwise than the
 * one in its place, or is otherwise aligned, up to `vector`. It is true of the mode that
 * `mode` gives. None where arrays cannot be looked at. */
PyObject *make_probe(PyObject *module, PyObject *args) {
  PyObject *quick, *flags, *mode, *arrays;
  unsigned long long table, vector;
  Py_ssize_t inside;
  struct probe *p;
  (void)module;
  if (!PyArg_ParseTuple(args, "KO!nO!OKO!", &table, &PyTuple_Type, &quick, &inside,
                        &PyTuple_Type, &flags, &mode, &vector, &PyTuple_Type,
                        &arrays) ||
      !(p = (struct probe *)PyType_GenericAlloc(&probe_type, 0)))
    return NULL;
  p->exchange = (const struct exchange *)table, p->inside = inside;
  p->vector = vector;
  p->flags = Py_NewRef(flags), p->mode = Py_NewRef(mode);
  p->count = PyTuple_GET_SIZE(arrays), p->lows = PyTuple_New(p->count);
  read_quick(&p->quick, quick);
  if (p->lows && !PyErr_Occurred() && keep_all(p, arrays))
    return (PyObject *)p;
  Py_DECREF(p);
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
    return NULL;
  PyErr_Clear();
  Py_RETURN_NONE;
}
