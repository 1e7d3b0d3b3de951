/* The table of a recording's guards as a function: rows are taken in turn.
 *
 * Registers own what they hold, because references and openers that are called may run
 * any code, and let other threads change what was read.
 */
#include "native.h"

enum { SEARCHES = 8 };

/* As in table.py. */
enum get { KEPT, CALL, OPEN, WHOLE, ATTRIBUTE, ITEM, TYPE, GETS };

enum test {
  FOUND,
  CLASS,
  LENGTH,
  KEYS,
  LACKS,
  IS,
  SAME,
  REFERS,
  LATEST,
  APART,
  TESTS
};

struct row {
  int get, of, at, test;
  int searches; /* how often the entry is still searched for */
  PyObject *key, *each, *value, *frozen; /* of the tuple of rows; no `each`: NULL */
  Py_ssize_t number;                     /* the value, where that is one */
  Py_ssize_t entry;                      /* where the item was in its dict */
};

struct guards {
  PyObject_HEAD vectorcallfunc call;
  PyObject *rows, *latest, *gone; /* `gone` stands for what is not there */
  Py_ssize_t registers, count, used;
  long *found; /* registers of the used arrays */
  struct row *read;
};

static int is_plain(PyObject *thing) {
  return PyDict_CheckExact(thing) || PyList_CheckExact(thing) ||
         PyTuple_CheckExact(thing);
}

/* Note where in a dict the key of a row is, unless it moves all the time. */
static void search(struct row *r, PyObject *space) {
  PyObject *key, *value;
  Py_ssize_t at = 0, entry = 0;
  if (!r->searches)
    return;
  r->searches--;
  while (PyDict_Next(space, &at, &key, &value) && key != r->key)
    entry = at;
  r->entry = entry;
}

/* Entries of a dict seldom move: most keys are found where they were, by identity.
 * That there is no such entry any more is no error to `PyDict_Next`. */
static PyObject *item_of(struct row *r, PyObject *space) {
  PyObject *key, *found;
  Py_ssize_t at = r->entry;
  if (!PyDict_CheckExact(space))
    return PyObject_GetItem(space, r->key);
  if (PyDict_Next(space, &at, &key, &found) && key == r->key)
    return Py_NewRef(found);
  found = Py_XNewRef(PyDict_GetItemWithError(space, r->key));
  if (found)
    search(r, space);
  return found;
}

static PyObject *part_of(struct row *r, PyObject *space) {
  PyObject *part, *found = item_of(r, space);
  if (!found || !r->each)
    return found;
  part = PyObject_GetAttr(found, r->each);
  Py_DECREF(found);
  return part;
}

/* What a row reads, owned; NULL where that is not there, perhaps without an error. */
static PyObject *got(struct row *r, PyObject **registers) {
  PyObject *of = registers[r->of];
  switch ((enum get)r->get) {
  case KEPT:
    return Py_XNewRef(registers[r->at]);
  case CALL:
    return PyObject_CallNoArgs(r->key);
  case OPEN:
    return PyObject_CallOneArg(r->key, of);
  case WHOLE:
    return is_plain(of) ? Py_NewRef(of) : PyObject_CallOneArg(r->key, of);
  case ATTRIBUTE:
    return PyObject_GetAttr(of, r->key);
  case ITEM:
    return part_of(r, of);
  case TYPE:
    return Py_NewRef((PyObject *)Py_TYPE(of));
  case GETS:
    break;
  }
  return NULL;
}

static int has_keys(const struct row *r, PyObject *space) {
  PyObject *key, *value;
  Py_ssize_t at = 0, count = PyTuple_GET_SIZE(r->value);
  if (!PyDict_CheckExact(space) || PyDict_GET_SIZE(space) != count)
    return 0;
  for (Py_ssize_t k = 0; k < count; k++)
    if (!PyDict_Next(space, &at, &key, &value) || key != item(r->value, k))
      return 0;
  return 1;
}

/* Whether no key of a class's dict is one of a set of names. */
static int has_none(PyObject *space, PyObject *names) {
  PyObject *keys = PyMapping_Keys(space);
  Py_ssize_t count = keys ? PyList_Size(keys) : -1, k = 0;
  while (k < count && !PySet_Contains(names, PyList_GetItem(keys, k)))
    k++;
  Py_XDECREF(keys);
  return k == count;
}

static int lacks(const struct row *r, PyObject *space) {
  if (Py_IS_TYPE(space, &PyDictProxy_Type))
    return has_none(space, r->frozen);
  if (!PyDict_CheckExact(space))
    return 0;
  for (Py_ssize_t k = 0; PyDict_GET_SIZE(space) && k < PyTuple_GET_SIZE(r->value); k++)
    if (PyDict_Contains(space, item(r->value, k)))
      return 0;
  return 1;
}

/* Whether these registers hold as many objects; false perhaps with an error. */
static int are_apart(PyObject *numbers, PyObject **registers) {
  PyObject *places = PySet_New(NULL);
  Py_ssize_t count = PyTuple_GET_SIZE(numbers), apart;
  for (Py_ssize_t k = 0; places && k < count; k++) {
    PyObject *place = PyLong_FromVoidPtr(registers[PyLong_AsLong(item(numbers, k))]);
    if (!place || PySet_Add(places, place) < 0)
      Py_CLEAR(places);
    Py_XDECREF(place);
  }
  apart = places && PySet_GET_SIZE(places) == count;
  Py_XDECREF(places);
  return (int)apart;
}

/* Whether a function returns an object. */
static int gives(PyObject *function, const PyObject *value) {
  PyObject *given = PyObject_CallNoArgs(Py_NewRef(function));
  int same = given == value;
  Py_XDECREF(given);
  Py_DECREF(function);
  return same;
}

/* What is gone is None, which may be just what is there now. */
static int refers(PyObject *reference, const PyObject *value) {
  if (!reference || Py_IsNone(value))
    return 0;
  if (Py_IS_TYPE(reference, &_PyWeakref_RefType))
    return refers_to(reference, value);
  return gives(reference, value);
}

/* Whether a value is the very one that a row expects; false perhaps with an error. */
static int holds(const struct row *r, PyObject *value, PyObject *latest,
                 PyObject **registers) {
  switch ((enum test)r->test) {
  case FOUND:
    return !Py_IsNone(value);
  case CLASS:
    return (PyObject *)Py_TYPE(value) == r->value;
  case LENGTH:
    return PyObject_Size(value) == r->number;
  case KEYS:
    return has_keys(r, value);
  case LACKS:
    return lacks(r, value);
  case IS:
    return value == r->value;
  case SAME:
    return value == registers[r->number];
  case REFERS:
    return refers(r->value, value);
  case LATEST:
    return refers(PyList_GetItem(latest, r->number), value);
  case APART:
    return are_apart(r->value, registers);
  case TESTS:
    break;
  }
  return 0;
}

/* Whether another value is as good as the one that a row expects. */
static int is_as_good(PyObject *table, Py_ssize_t number, PyObject *value) {
  PyObject *answer = PyObject_CallMethod(table, "same", "nO", number, value);
  int yes = answer && PyObject_IsTrue(answer) == 1;
  Py_XDECREF(answer);
  return yes;
}

/* Whether an error says that something is not there, or was being written by another
 * thread; then it is cleared. */
static int is_gone(void) {
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_AttributeError) &&
      !PyErr_ExceptionMatches(PyExc_LookupError) &&
      !PyErr_ExceptionMatches(PyExc_RuntimeError) &&
      !PyErr_ExceptionMatches(PyExc_TypeError) && /* of no closure at all */
      !PyErr_ExceptionMatches(PyExc_ValueError))  /* of a cell that is empty */
    return 0;
  PyErr_Clear();
  return 1;
}

/* Take one row; false ends it all, perhaps with an error. Only if it is `loose`, other
 * constants and arrays are as good. */
static int take(const struct guards *g, Py_ssize_t number, PyObject **registers,
                PyObject *table, int loose) {
  struct row *r = &g->read[number];
  PyObject *value = got(r, registers);
  if (!value && !is_gone())
    return 0;
  Py_XSETREF(registers[r->at], value ? value : Py_NewRef(g->gone));
  if (!value && r->test == FOUND)
    return 0;
  value = registers[r->at];
  if (holds(r, value, g->latest, registers))
    return 1;
  if (!(r->test == KEYS || r->test == LACKS ||
        (loose && (r->test == IS || r->test == LATEST))))
    return 0;
  return !PyErr_Occurred() && is_as_good(table, number, value);
}

/* What the used arrays' slots hold; NULL with an error. */
static PyObject *gathered(const struct guards *g, PyObject **registers) {
  PyObject *list = PyList_New(g->used);
  for (Py_ssize_t k = 0; list && k < g->used; k++)
    PyList_SetItem(list, k, Py_XNewRef(registers[g->found[k]]));
  return list;
}

/* Called with the table that these are of, and whether to be loose: take all rows; None
 * where one does not hold. */
static PyObject *look(PyObject *self, PyObject *const *args, size_t count,
                      PyObject *named) {
  const struct guards *g = (struct guards *)self;
  PyObject **registers, *result = NULL;
  Py_ssize_t k = 0, given = PyVectorcall_NARGS(count);
  int loose = given == 2 && args[1] == Py_True;
  if (given < 1 || given > 2 || named) {
    PyErr_SetString(PyExc_TypeError, "guards are called with their table");
    return NULL;
  }
  registers = calloc((size_t)g->registers, sizeof *registers);
  if (!registers)
    return PyErr_NoMemory();
  while (k < g->count && take(g, k, registers, args[0], loose))
    k++;
  if (k == g->count)
    result = gathered(g, registers);
  else if (is_gone())
    result = Py_NewRef(Py_None);
  for (k = 0; k < g->registers; k++)
    Py_XDECREF(registers[k]);
  free(registers);
  return result;
}

/* Making one. */

static int is_register(const struct guards *g, Py_ssize_t at) {
  return at >= 0 && at < g->registers;
}

static int number(PyObject *tuple, Py_ssize_t k) {
  return (int)PyLong_AsLong(item(tuple, k));
}

static int read_row(const struct guards *g, struct row *r, PyObject *from) {
  r->get = number(from, 0), r->of = number(from, 1);
  r->key = item(from, 2), r->each = item(from, 3), r->value = item(from, 6);
  r->at = number(from, 4), r->test = number(from, 5);
  r->frozen = item(from, 8), r->searches = SEARCHES;
  if (!PyUnicode_GetLength(r->each))
    r->each = NULL;
  if (r->test == LENGTH || r->test == SAME || r->test == LATEST)
    r->number = PyLong_AsSsize_t(r->value);
  for (Py_ssize_t k = 0; r->test == APART && k < PyTuple_GET_SIZE(r->value); k++)
    if (!is_register(g, PyLong_AsLong(item(r->value, k))))
      return 0;
  return r->get >= 0 && r->get < GETS && r->test >= 0 && r->test < TESTS &&
         is_register(g, r->at) && is_register(g, r->of) &&
         (r->test != SAME || is_register(g, r->number));
}

static int read_rows(struct guards *g, PyObject *found) {
  for (Py_ssize_t k = 0; k < g->count; k++)
    if (!read_row(g, &g->read[k], item(g->rows, k)))
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
  Py_VISIT(g->gone);
  return 0;
}

static void discard(PyObject *self) {
  struct guards *g = (struct guards *)self;
  PyObject_GC_UnTrack(self);
  free(g->read), free(g->found);
  Py_XDECREF(g->rows);
  Py_XDECREF(g->latest);
  Py_XDECREF(g->gone);
  Py_TYPE(self)->tp_free(self);
}

/* Nothing is cleared, as of a tuple: what is read points to what the rows own. */
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

/* compile_guards(rows, found, latest, registers, gone): rows begin as `Row` of table.py
 * does, and `found` are the registers of the used arrays. */
PyObject *compile_guards(PyObject *module, PyObject *args) {
  PyObject *rows, *found, *latest, *gone;
  Py_ssize_t registers;
  struct guards *g;
  (void)module;
  if (!PyArg_ParseTuple(args, "O!O!O!nO", &PyTuple_Type, &rows, &PyTuple_Type, &found,
                        &PyList_Type, &latest, &registers, &gone) ||
      !(g = (struct guards *)PyType_GenericAlloc(&guards_type, 0)))
    return NULL;
  g->call = look, g->registers = registers;
  g->rows = Py_NewRef(rows), g->latest = Py_NewRef(latest), g->gone = Py_NewRef(gone);
  g->count = PyTuple_GET_SIZE(rows), g->used = PyTuple_GET_SIZE(found);
  g->read = calloc((size_t)g->count + 1, sizeof *g->read);
  g->found = calloc((size_t)g->used + 1, sizeof *g->found);
  if (!g->read || !g->found)
    PyErr_NoMemory();
  else if (!read_rows(g, found) && !PyErr_Occurred())
    PyErr_SetString(PyExc_ValueError, "a row names what is no register");
  if (PyErr_Occurred())
    Py_CLEAR(g);
  return (PyObject *)g;
}
