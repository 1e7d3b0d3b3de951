/* A graphed function that is called: from the interpreter straight to its encores.
 *
 * Whatever is no plain call of a function that has any is Python's, as it ever was.
 */
#ifndef SAPWOOD_AGAIN_CALL_H
#define SAPWOOD_AGAIN_CALL_H

#include "again.h"

/* Of the one class: two variables of the context, what is called instead, slots. */
static struct {
  Object *session, *disabled, *plain, *missed;
  Size encores, runtime, on, agains;
} front;

static Object *replayed(struct again *a, Object *const *call, Size count);
static struct again *again_of(Object *play);

static Object *inside(Object *owner, Size offset) {
  return *(Object **)((char *)owner + offset);
}

/* Call a function with an object in front of what that was called with. */
static Object *passed_on(Object *function, Object *self, Object *const *args,
                         Size count, Object *names) {
  size_t all = (size_t)count + (names ? (size_t)PyTuple_Size(names) : 0);
  Object **passed = malloc((all + 1) * sizeof *passed), *shown;
  if (!passed)
    return PyErr_NoMemory();
  passed[0] = self;
  for (size_t k = 0; k < all; k++)
    passed[k + 1] = args[k];
  shown = PyObject_Vectorcall(function, passed, (size_t)count + 1, names);
  free(passed);
  return shown;
}

static int is_now(Object *variable, const Object *value) {
  Object *found = NULL;
  if (PyContextVar_Get(variable, NULL, &found) < 0)
    PyErr_Clear(); /* then Python says so */
  Py_DecRef(found);
  return found == value;
}

/* The encores, owned, of a function that is still on its runtime; or NULL, perhaps with
 * an error. */
static Object *encores_of(Object *self) {
  Object *runtime, *agains, *encores = inside(self, front.encores);
  int same;
  if (!encores || is_none(encores) || !inside(self, front.runtime) ||
      !(runtime = PyObject_CallNoArgs(inside(self, front.runtime))))
    return NULL;
  same = runtime == inside(self, front.on);
  Py_DecRef(runtime);
  encores = inside(self, front.encores); /* any code may have run */
  agains = same && encores && !is_none(encores) ? inside(encores, front.agains) : NULL;
  return agains && PyTuple_Size(agains) ? given(agains) : NULL;
}

static Object *call(Object *self, Object *const *args, Size count, Object *names) {
  Object *agains = NULL, *shown = NULL;
  struct again *a = NULL;
  if (!names && is_now(front.session, &_Py_NoneStruct) &&
      is_now(front.disabled, &_Py_FalseStruct))
    agains = encores_of(self);
  if (!agains)
    return PyErr_Occurred() ? NULL : passed_on(front.plain, self, args, count, names);
  for (Size k = 0; k < PyTuple_Size(agains) && !shown && !PyErr_Occurred(); k++)
    if ((a = again_of(item(agains, k))))
      shown = replayed(a, args, count);
  Py_DecRef(agains);
  if (shown || PyErr_Occurred())
    return shown;
  return passed_on(a ? front.missed : front.plain, self, args, count, NULL);
}

static Method calls = {"__call__",
                       (Object * (*)(Object *, Object *))(void (*)(void)) call,
                       ARGUMENTS | KEYWORDS,
                       "__call__($self, /, *args, **kwargs)\n--\n\n"};

/* What a class may have as `__call__`. Of (session, disabled, plain, missed), and where
 * slots lie: (encores, runtime, on) of the class, agains. There is one such class: None
 * for another, of modules that were imported anew. */
EXPORT Object *sapwood_calls(Object *class, Object *told) {
  if (front.plain)
    return given(&_Py_NoneStruct);
  front.session = item(told, 0), front.disabled = item(told, 1);
  front.plain = item(told, 2), front.missed = item(told, 3);
  front.encores = (Size)number(told, 4), front.runtime = (Size)number(told, 5);
  front.on = (Size)number(told, 6), front.agains = (Size)number(told, 7);
  Py_IncRef(told); /* for good: so is the class */
  return PyErr_Occurred() ? NULL : PyDescr_NewMethod(class, &calls);
}

#endif
