/* Steps of guards, one by one.
 *
 * Registers own what they hold, because references and openers that are called may run
 * any code, and let other threads change what was read.
 */
#ifndef SAPWOOD_STEPS_H
#define SAPWOOD_STEPS_H

#include "native.h"

/* As in steps.py. */
enum op {
  ROOT,
  OPEN,
  WHOLE,
  ATTRIBUTE,
  ITEM,
  CLASS,
  LENGTH,
  KEYS,
  LACKS,
  IS,
  SAME,
  REFERS,
  LATEST,
  APART,
  OPS
};

struct step {
  long op, at, of;
  PyObject *value, *ask; /* the tuple of steps owns them */
  int restless;          /* what it reads of a dict changes, and is read every time */
  Py_ssize_t relies;     /* number of the dict that it relies on, or -1 */
};

/* Which step reads what an operand `of` names, and which tests register `at`. */
static int takes_of(long op) {
  return op == OPEN || op == WHOLE || op == ATTRIBUTE || op == ITEM || op == SAME;
}

static int tests_at(long op) { return op >= CLASS; }

/* Fill a register with a reference that is handed over; false where there is none. */
static int fill(PyObject **at, PyObject *value) {
  Py_XSETREF(*at, value);
  return value != NULL;
}

static int is_plain(PyObject *thing) {
  return thing && (Py_TYPE(thing) == &PyDict_Type || Py_TYPE(thing) == &PyList_Type ||
                   Py_TYPE(thing) == &PyTuple_Type);
}

static PyObject *whole(PyObject *thing, PyObject *open) {
  return is_plain(thing) ? Py_NewRef(thing) : PyObject_CallOneArg(open, thing);
}

static PyObject *item_of(const struct step *s, PyObject *space) {
  return Py_TYPE(space) == &PyDict_Type
             ? Py_XNewRef(PyDict_GetItemWithError(space, s->value))
             : PyObject_GetItem(space, s->value);
}

static int agrees(PyObject *ask, PyObject *space) {
  PyObject *answer = PyObject_CallOneArg(ask, space);
  int yes = answer && PyObject_IsTrue(answer) == 1;
  Py_XDECREF(answer);
  return yes;
}

static int has_keys(const struct step *s, PyObject *space) {
  PyObject *key, *value;
  Py_ssize_t at = 0, count = PyTuple_GET_SIZE(s->value);
  if (Py_TYPE(space) != &PyDict_Type)
    return agrees(s->ask, space);
  if (PyDict_Size(space) != count)
    return 0;
  for (Py_ssize_t k = 0; k < count; k++)
    if (!PyDict_Next(space, &at, &key, &value) || key != item(s->value, k))
      return 0;
  return 1;
}

static int lacks(const struct step *s, PyObject *space) {
  Py_ssize_t count = PyTuple_GET_SIZE(s->value);
  if (Py_TYPE(space) != &PyDict_Type)
    return agrees(s->ask, space);
  if (!PyDict_Size(space))
    return 1;
  for (Py_ssize_t k = 0; k < count; k++)
    if (PyDict_Contains(space, item(s->value, k)))
      return 0;
  return 1;
}

/* Whether these registers hold as many objects: each finds a place of its own. */
static int are_apart(PyObject *numbers, PyObject **registers) {
  Py_ssize_t count = PyTuple_GET_SIZE(numbers), size = 4, apart = 1;
  const PyObject **places;
  while (size < 2 * count)
    size *= 2;
  places = calloc((size_t)size, sizeof *places);
  for (Py_ssize_t k = 0; places && apart && k < count; k++) {
    const PyObject *object = registers[PyLong_AsLong(item(numbers, k))];
    Py_ssize_t at =
        (Py_ssize_t)(((size_t)object >> 4) * 0x9E3779B97F4A7C15u) & (size - 1);
    while (places[at] && places[at] != object)
      at = (at + 1) & (size - 1);
    apart = object && !places[at];
    places[at] = object;
  }
  apart = apart && places;
  free(places);
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
  if (Py_TYPE(reference) == &_PyWeakref_RefType)
    return refers_to(reference, value);
  return gives(reference, value);
}

/* Take one step; false ends it all, perhaps with an error. */
static int take(const struct step *s, PyObject *latest, PyObject **registers) {
  PyObject **at = &registers[s->at];
  PyObject *of = s->op == LENGTH || s->op == LATEST ? NULL : registers[s->of];
  switch ((enum op)s->op) {
  case ROOT:
    return fill(at, PyObject_CallNoArgs(s->value)) && !Py_IsNone(*at);
  case OPEN:
    return fill(at, PyObject_CallOneArg(s->value, of));
  case WHOLE:
    return fill(at, whole(of, s->value));
  case ATTRIBUTE:
    return fill(at, PyObject_GetAttr(of, s->value));
  case ITEM:
    return fill(at, item_of(s, of));
  case CLASS:
    return (PyObject *)Py_TYPE(*at) == s->value;
  case LENGTH:
    return PyObject_Size(*at) == s->of;
  case KEYS:
    return has_keys(s, *at);
  case LACKS:
    return lacks(s, *at);
  case IS:
    return *at == s->value;
  case SAME:
    return *at == of;
  case REFERS:
    return refers(s->value, *at);
  case LATEST:
    return refers(PyList_GetItem(latest, s->of), *at);
  case APART:
    return are_apart(s->value, registers);
  case OPS:
    break;
  }
  return 0;
}

#endif
