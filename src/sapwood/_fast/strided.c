/* Arrays that say by attributes where they lie, and how: CuPy's do. */
#include "probe.h"

enum { MOST_DIMS = 64 };

/* All are owned for good. */
static struct {
  PyObject *data, *pointer, *ordinal, *memory, *shape, *strides, *dtype, *num, *size;
  PyObject *storage, *writer, *readers, *uses;
} names;

static PyObject *current_stream;  /* gives its number */
static PyTypeObject *own_memory; /* of this library: its storage knows its users */

/* What was looked at last; good until the next look, under the interpreter's lock. */
static int64_t seen[2][MOST_DIMS];

static long long number_of(PyObject *from, PyObject *name) {
  PyObject *value = from ? PyObject_GetAttr(from, name) : NULL;
  long long found = value ? PyLong_AsLongLong(value) : -1;
  Py_XDECREF(value);
  return found;
}

/* How many numbers there are in a tuple; -1 where these are too many, or no numbers. No
 * code runs. */
static int32_t numbers_of(PyObject *tuple, int64_t *to) {
  Py_ssize_t count = tuple && PyTuple_Check(tuple) ? PyTuple_GET_SIZE(tuple) : -1;
  if (count > MOST_DIMS)
    return -1;
  for (Py_ssize_t k = 0; k < count; k++) {
    if (!PyLong_Check(item(tuple, k)))
      return -1;
    to[k] = PyLong_AsLongLong(item(tuple, k));
  }
  return (int32_t)count;
}

static int look(PyObject *array, Tensor *found) {
  PyObject *data = PyObject_GetAttr(array, names.data);
  PyObject *dtype = PyObject_GetAttr(array, names.dtype);
  PyObject *shape = PyObject_GetAttr(array, names.shape);
  PyObject *strides = PyObject_GetAttr(array, names.strides);
  int unknown;
  found->data = (void *)(intptr_t)number_of(data, names.pointer), found->offset = 0;
  found->device = CUDA, found->ordinal = (int32_t)number_of(data, names.ordinal);
  found->code = (uint8_t)number_of(dtype, names.num);
  found->bits = 0, found->lanes = (uint16_t)number_of(dtype, names.size);
  Py_XDECREF(data);
  Py_XDECREF(dtype);
  /* Last: whatever code runs before may look at another array. */
  found->dims = numbers_of(shape, seen[0]);
  unknown = found->dims < 0 || found->dims != numbers_of(strides, seen[1]);
  found->shape = seen[0], found->strides = seen[1];
  Py_XDECREF(shape);
  Py_XDECREF(strides);
  return unknown || PyErr_Occurred();
}

static int current(int32_t device, int32_t ordinal, void **stream) {
  PyObject *raw = PyObject_CallNoArgs(current_stream);
  (void)device, (void)ordinal;
  *stream = raw ? PyLong_AsVoidPtr(raw) : NULL;
  Py_XDECREF(raw);
  return PyErr_Occurred() != NULL;
}

const struct exchange strided = {.look = look, .current = current};

int is_settled(PyObject *array, PyObject *stream) {
  PyObject *data = PyObject_GetAttr(array, names.data), *storage = NULL;
  PyObject *memory = data ? PyObject_GetAttr(data, names.memory) : NULL;
  int settled = memory && !Py_IS_TYPE(memory, own_memory);
  if (memory && !settled && (storage = PyObject_GetAttr(memory, names.storage))) {
    PyObject *writer = PyObject_GetAttr(storage, names.writer);
    PyObject *readers = PyObject_GetAttr(storage, names.readers);
    PyObject *uses = PyObject_GetAttr(storage, names.uses);
    settled = stream && writer == stream && readers && PyObject_Not(readers) == 1 &&
              uses && PyObject_Not(uses) == 1;
    Py_XDECREF(writer);
    Py_XDECREF(readers);
    Py_XDECREF(uses);
  }
  Py_XDECREF(storage);
  Py_XDECREF(memory);
  Py_XDECREF(data);
  return settled;
}

static int name_all(void) {
  const struct {
    const char *name;
    PyObject **to;
  } wanted[] = {{"data", &names.data},       {"ptr", &names.pointer},
                {"device_id", &names.ordinal}, {"mem", &names.memory},
                {"shape", &names.shape},     {"strides", &names.strides},
                {"dtype", &names.dtype},     {"num", &names.num},
                {"itemsize", &names.size},   {"storage", &names.storage},
                {"writer", &names.writer},   {"readers", &names.readers},
                {"stream_uses", &names.uses}};
  for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++)
    if (!*wanted[k].to &&
        !(*wanted[k].to = PyUnicode_InternFromString(wanted[k].name)))
      return 0;
  return 1;
}

/* look_by_attributes(current, known): the table for `make_probe` of arrays that have a
 * `data` with `ptr`, `device_id` and `mem`, and `shape`, `strides` and `dtype`. The
 * function `current` gives the number of the current stream; where `mem` is of the class
 * `known`, it has a storage. */
PyObject *look_by_attributes(PyObject *module, PyObject *args) {
  PyObject *current_of, *known;
  (void)module;
  if (!PyArg_ParseTuple(args, "OO!", &current_of, &PyType_Type, &known) || !name_all())
    return NULL;
  Py_XSETREF(current_stream, Py_NewRef(current_of));
  Py_XSETREF(own_memory, (PyTypeObject *)Py_NewRef(known));
  return PyLong_FromVoidPtr((void *)(uintptr_t)&strided);
}
