/* A graphed function that is called: from the interpreter straight to its fast replays.
 *
 * Whatever is no plain call of a function that has any is Python's, as it ever was.
 */
#ifndef SAPWOOD_REPLAY_CALL_H
#define SAPWOOD_REPLAY_CALL_H

#include "replay.h"

typedef Object *(*Called)(Object *self, Object *args, Object *named);
enum { CALL = 16, MOST = 16 }; /* which slot of a type is called; arguments */

/* Of the one class: two variables of the context, what is called instead, slots. */
static struct {
  Object *session, *disabled, *missed;
  Called plain;
  Size fast_replays, runtime, on, players;
} front;

static Object *replayed(struct again *a, Object *const *call, Size count);
static struct again *again_of(Object *play);

static Object *inside(Object *owner, Size offset) {
  return *(Object **)((char *)owner + offset);
}

/* Call a function with an object in front of what that was called with. */
static Object *passed_on(Object *function, Object *self, Object *const *args,
                         Size count) {
  Object *passed[MOST + 1] = {self};
  for (Size k = 0; k < count; k++)
    passed[k + 1] = args[k];
  return PyObject_Vectorcall(function, passed, (size_t)count + 1, NULL);
}

static int is_now(Object *variable, const Object *value) {
  Object *found = NULL;
  if (PyContextVar_Get(variable, NULL, &found) < 0)
    PyErr_Clear(); /* then Python says so */
  Py_DecRef(found);
  return found == value;
}

/* What plays the fast replays, owned, of a function that is still on its runtime; or NULL,
 * perhaps with an error. */
static Object *players_of(Object *self) {
  Object *runtime, *players, *fast_replays = inside(self, front.fast_replays);
  int same;
  if (!fast_replays || is_none(fast_replays) || !inside(self, front.runtime) ||
      !(runtime = PyObject_CallNoArgs(inside(self, front.runtime))))
    return NULL;
  same = runtime == inside(self, front.on);
  Py_DecRef(runtime);
  fast_replays = inside(self, front.fast_replays); /* any code may have run */
  players = NULL;
  if (same && fast_replays && !is_none(fast_replays))
    players = inside(fast_replays, front.players);
  return players && PyTuple_Size(players) ? given(players) : NULL;
}

static Object *called(Object *self, Object *tuple, Object *named) {
  Object *players = NULL, *shown = NULL, *args[MOST];
  struct again *a = NULL;
  Size count = PyTuple_Size(tuple);
  if (!(named && PyObject_Size(named)) && count <= MOST &&
      is_now(front.session, &_Py_NoneStruct) && is_now(front.disabled, &_Py_FalseStruct))
    players = players_of(self);
  if (!players)
    return PyErr_Occurred() ? NULL : front.plain(self, tuple, named);
  for (Size k = 0; k < count; k++)
    args[k] = item(tuple, k);
  for (Size k = 0; k < PyTuple_Size(players) && !shown && !PyErr_Occurred(); k++)
    if ((a = again_of(item(players, k))))
      shown = replayed(a, args, count);
  Py_DecRef(players);
  if (shown || PyErr_Occurred())
    return shown;
  return a ? passed_on(front.missed, self, args, count) : front.plain(self, tuple, named);
}

/* Have a class called here, whose `__call__` stays what it is: it is Python's, and who
 * traces a program reads it. Of (session, disabled, missed), and where slots lie:
 * (fast_replays, runtime, on) of the class, players. There is one such class, with those
 * that derive from it: False for another, of modules that were imported anew. */
EXPORT Object *sapwood_calls(Object *class, Object *told) {
  Called *slot = (Called *)class + CALL;
  if (!front.plain) {
    front.session = item(told, 0), front.disabled = item(told, 1);
    front.missed = item(told, 2);
    front.fast_replays = (Size)number(told, 3), front.runtime = (Size)number(told, 4);
    front.on = (Size)number(told, 5), front.players = (Size)number(told, 6);
    if (PyErr_Occurred())
      return NULL;
    Py_IncRef(told); /* for good: so is the class */
    front.plain = *slot;
  }
  if (front.session != item(told, 0) || (*slot != front.plain && *slot != called))
    return given(&_Py_FalseStruct);
  *slot = called;
  return given(&_Py_TrueStruct);
}

#endif
