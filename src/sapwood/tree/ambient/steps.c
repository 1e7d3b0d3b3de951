/* Steps of guards, taken without the interpreter.
 *
 * All that is declared here is of Python's stable ABI of builds with one lock: its
 * headers are often not installed. Registers own what they hold, because references and
 * openers that are called may run any code, and let other threads change what was read.
 */
#include <stddef.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
#define OLD __attribute__((weak)) /* till 3.14 */
#define NEW __attribute__((weak)) /* since 3.13 */

typedef ptrdiff_t Size;

typedef struct object {
  Size references; /* never touched from here */
  const struct object *type;
} Object;

typedef struct {
  const char *name;
  Object *(*call)(Object *, Object *);
  int flags;
  const char *doc;
} Method;

enum { NO_ARGUMENTS = 4, SEARCHES = 8 };

extern Object _Py_NoneStruct;
extern Object PyDict_Type, PyList_Type, PyTuple_Type, _PyWeakref_RefType;
extern Object *PyExc_AttributeError, *PyExc_LookupError, *PyExc_RuntimeError;
extern Object *PyExc_ValueError;

extern void Py_IncRef(Object *);
extern void Py_DecRef(Object *);
extern Object *PyObject_CallNoArgs(Object *);
extern Object *PyObject_CallFunctionObjArgs(Object *, ...);
extern Object *PyObject_GetAttr(Object *, Object *);
extern Object *PyObject_GetItem(Object *, Object *);
extern int PyObject_IsTrue(Object *);
extern Size PyObject_Size(Object *);
extern int PyDict_Contains(Object *, Object *);
extern Object *PyDict_GetItemWithError(Object *, Object *);
extern int PyDict_Next(Object *, Size *, Object **, Object **);
extern Size PyDict_Size(Object *);
extern Object *PyList_GetItem(Object *, Size);
extern Object *PyList_New(Size);
extern int PyList_SetItem(Object *, Size, Object *);
extern Object *PyTuple_GetItem(Object *, Size);
extern Object *PyTuple_Pack(Size, ...);
extern Size PyTuple_Size(Object *);
extern long PyLong_AsLong(Object *);
extern Object *PyCapsule_New(void *, const char *, void (*)(Object *));
extern void *PyCapsule_GetPointer(Object *, const char *);
extern Object *PyCFunction_NewEx(Method *, Object *, Object *);
extern Object *PyErr_NoMemory(void);
extern Object *PyWeakref_GetObject(Object *) OLD;
extern int PyWeakref_GetRef(Object *, Object **) NEW;
extern Object *PyErr_Occurred(void);
extern int PyErr_ExceptionMatches(Object *);
extern void PyErr_SetString(Object *, const char *);
extern void PyErr_Clear(void);

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
  OPS
};

struct step {
  long op, at, of;
  Object *value, *ask; /* the tuple of steps owns them */
  Size entry;          /* where the item was in its dict */
  int searches;        /* how often that is still searched for */
};

struct program {
  Object *latest;
  Size registers, count, used;
  long *found; /* registers of the used arrays */
  struct step steps[];
};

static const char name[] = "sapwood.steps";

static int is_none(const Object *value) { return value == &_Py_NoneStruct; }

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
  for (Size k = 0; k < count; k++)
    if (PyDict_Contains(space, PyTuple_GetItem(s->value, k)))
      return 0;
  return 1;
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
static int take(const struct program *p, struct step *s, Object **registers) {
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
    return refers(PyList_GetItem(p->latest, s->of), *at);
  case OPS:
    break;
  }
  return 0;
}

static Object *gathered(const struct program *p, Object **registers) {
  Object *list = PyList_New(p->used);
  for (Size k = 0; list && k < p->used; k++) {
    Py_IncRef(registers[p->found[k]]);
    PyList_SetItem(list, k, registers[p->found[k]]);
  }
  return list;
}

/* None, where a slot is not there any more or was being written by another thread. */
static Object *not_told(void) {
  if (PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError) &&
        !PyErr_ExceptionMatches(PyExc_LookupError) &&
        !PyErr_ExceptionMatches(PyExc_RuntimeError))
      return NULL;
    PyErr_Clear();
  }
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}

static Object *look(Object *self, Object *unused) {
  struct program *p = PyCapsule_GetPointer(PyTuple_GetItem(self, 0), name);
  Object **registers = calloc((size_t)p->registers, sizeof *registers), *result;
  Size k = 0;
  (void)unused;
  if (!registers)
    return PyErr_NoMemory();
  while (k < p->count && take(p, &p->steps[k], registers))
    k++;
  result = k == p->count ? gathered(p, registers) : not_told();
  for (k = 0; k < p->registers; k++)
    if (registers[k])
      Py_DecRef(registers[k]);
  free(registers);
  return result;
}

static Method method = {"look", look, NO_ARGUMENTS, NULL};

static void discard(Object *capsule) { free(PyCapsule_GetPointer(capsule, name)); }

static int is_register(const struct program *p, long number) {
  return number >= 0 && number < p->registers;
}

static int read_step(const struct program *p, struct step *s, Object *from) {
  s->op = PyLong_AsLong(PyTuple_GetItem(from, 0));
  s->at = PyLong_AsLong(PyTuple_GetItem(from, 1));
  s->of = PyLong_AsLong(PyTuple_GetItem(from, 2));
  s->value = PyTuple_GetItem(from, 3);
  s->ask = PyTuple_GetItem(from, 4);
  s->entry = 0, s->searches = SEARCHES;
  return s->op >= 0 && s->op < OPS && is_register(p, s->at) &&
         (s->op == LENGTH || s->op == LATEST || is_register(p, s->of));
}

static int read(struct program *p, Object *steps, Object *found) {
  for (Size k = 0; k < p->count; k++)
    if (!read_step(p, &p->steps[k], PyTuple_GetItem(steps, k)))
      return 0;
  for (Size k = 0; k < p->used; k++) {
    p->found[k] = PyLong_AsLong(PyTuple_GetItem(found, k));
    if (!is_register(p, p->found[k]))
      return 0;
  }
  return !PyErr_Occurred();
}

/* A built-in function that takes steps of (op, at, of, value, ask). What these refer to
 * is owned by a tuple, so that the collector of cycles sees it; the program points. */
EXPORT Object *sapwood_steps(Object *steps, Object *found, Object *latest,
                             Size registers) {
  Size count = PyTuple_Size(steps), used = PyTuple_Size(found);
  struct program *p = malloc(sizeof *p + (size_t)count * sizeof *p->steps +
                             (size_t)used * sizeof *p->found);
  Object *capsule, *self, *function;
  if (!p)
    return PyErr_NoMemory();
  p->latest = latest, p->registers = registers, p->count = count, p->used = used;
  p->found = (long *)(p->steps + count);
  if (!read(p, steps, found) || !(capsule = PyCapsule_New(p, name, discard))) {
    free(p);
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_ValueError, "a step names what is no register");
    return NULL;
  }
  self = PyTuple_Pack(3, capsule, steps, latest);
  Py_DecRef(capsule);
  if (!self)
    return NULL;
  function = PyCFunction_NewEx(&method, self, NULL);
  Py_DecRef(self);
  return function;
}
