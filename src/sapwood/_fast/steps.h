/* Steps of guards, one by one.
 *
 * Registers own what they hold, because references and openers that are called may run
 * any code, and let other threads change what was read.
 */
#ifndef SAPWOOD_STEPS_H
#define SAPWOOD_STEPS_H

#include "cpython.h"

enum { SEARCHES = 8 };

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
  Object *value, *ask; /* the tuple of steps owns them */
  Size entry;          /* where the item was in its dict */
  int searches;        /* how often that is still searched for */
  int restless;        /* what it reads of a dict changes, and is read every time */
  Size relies;         /* number of the dict that it relies on, or -1 */
};

/* Which step reads what an operand `of` names, and which tests register `at`. */
static int takes_of(long op) {
  return op == OPEN || op == WHOLE || op == ATTRIBUTE || op == ITEM || op == SAME;
}

static int tests_at(long op) { return op >= CLASS; }

/* Fill a register with a reference that is handed over; false where there is none. */
static int fill(Object **at, Object *value) {
  Object *old = *at;
  *at = value;
  if (old)
    Py_DecRef(old);
  return value != NULL;
}

static Object *called(Object *function, Object *argument) {
  return PyObject_CallFunctionObjArgs(function, argument, NULL);
}

static Object *whole(Object *thing, Object *open) {
  if (thing->type != &PyDict_Type && thing->type != &PyList_Type &&
      thing->type != &PyTuple_Type)
    return called(open, thing);
  Py_IncRef(thing);
  return thing;
}

/* Note where in a dict the key of a step is, unless it moves all the time. */
static void search(struct step *s, Object *space) {
  Object *key, *value;
  Size at = 0, entry = 0;
  if (!s->searches)
    return;
  s->searches--;
  while (PyDict_Next(space, &at, &key, &value) && key != s->value)
    entry = at;
  s->entry = entry;
}

/* Entries of a dict seldom move: most keys are found where they were, by identity.
 * That there is no such entry any more is no error to `PyDict_Next`. */
static Object *item(struct step *s, Object *space) {
  Object *key, *found;
  Size at = s->entry;
  if (space->type != &PyDict_Type)
    return PyObject_GetItem(space, s->value);
  if (PyDict_Next(space, &at, &key, &found) && key == s->value) {
    Py_IncRef(found);
    return found;
  }
  found = PyDict_GetItemWithError(space, s->value);
  Py_IncRef(found);
  if (found)
    search(s, space);
  return found;
}

static int agrees(Object *ask, Object *space) {
  Object *answer = called(ask, space);
  int yes = answer && PyObject_IsTrue(answer) == 1;
  Py_DecRef(answer);
  return yes;
}

static int has_keys(const struct step *s, Object *space) {
  Object *key, *value;
  Size at = 0, count = PyTuple_Size(s->value);
  if (space->type != &PyDict_Type)
    return agrees(s->ask, space);
  if (PyDict_Size(space) != count)
    return 0;
  for (Size k = 0; k < count; k++)
    if (!PyDict_Next(space, &at, &key, &value) || key != PyTuple_GetItem(s->value, k))
      return 0;
  return 1;
}

static int lacks(const struct step *s, Object *space) {
  Size count = PyTuple_Size(s->value);
  if (space->type != &PyDict_Type)
    return agrees(s->ask, space);
  if (!PyDict_Size(space))
    return 1;
  for (Size k = 0; k < count; k++)
    if (PyDict_Contains(space, PyTuple_GetItem(s->value, k)))
      return 0;
  return 1;
}

/* Whether these registers hold as many objects: each finds a place of its own. */
static int are_apart(Object *numbers, Object **registers) {
  Size count = PyTuple_Size(numbers), size = 4, apart = 1;
  const Object **places;
  while (size < 2 * count)
    size *= 2;
  places = calloc((size_t)size, sizeof *places);
  for (Size k = 0; places && apart && k < count; k++) {
    const Object *object = registers[PyLong_AsLong(PyTuple_GetItem(numbers, k))];
    Size at = (Size)(((size_t)object >> 4) * 0x9E3779B97F4A7C15u) & (size - 1);
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
static int gives(Object *function, const Object *value) {
  Object *given;
  int same;
  Py_IncRef(function);
  given = PyObject_CallNoArgs(function);
  same = given == value;
  Py_DecRef(given);
  Py_DecRef(function);
  return same;
}

/* Whether a weak reference is to an object; no code runs before that is known. */
static int is_to(Object *reference, const Object *value) {
  Object *target;
  int same;
  if (!PyWeakref_GetRef)
    return PyWeakref_GetObject(reference) == value;
  PyWeakref_GetRef(reference, &target);
  same = target == value;
  Py_DecRef(target);
  return same;
}

/* What is gone is None, which may be just what is there now. */
static int refers(Object *reference, const Object *value) {
  if (!reference || is_none(value))
    return 0;
  if (reference->type == &_PyWeakref_RefType)
    return is_to(reference, value);
  return gives(reference, value);
}

/* Take one step; false ends it all, perhaps with an error. */
static int take(struct step *s, Object *latest, Object **registers) {
  Object **at = &registers[s->at];
  Object *of = s->op == LENGTH || s->op == LATEST ? NULL : registers[s->of];
  switch ((enum op)s->op) {
  case ROOT:
    return fill(at, PyObject_CallNoArgs(s->value)) && !is_none(*at);
  case OPEN:
    return fill(at, called(s->value, of));
  case WHOLE:
    return fill(at, whole(of, s->value));
  case ATTRIBUTE:
    return fill(at, PyObject_GetAttr(of, s->value));
  case ITEM:
    return fill(at, item(s, of));
  case CLASS:
    return (*at)->type == s->value;
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
