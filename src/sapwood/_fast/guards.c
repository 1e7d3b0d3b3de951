/* The steps of a recording's guards as a function: all of them, or a shortcut.
 *
 * What the steps refer to is owned by a tuple, so that the collector of cycles sees it.
 */
#include "asked.h"
#include "shortcut.h"

struct program {
  struct asked asked; /* first: others know of no more */
  Object *latest;
  Size registers, count, used;
  long *found; /* registers of the used arrays */
  struct shortcut *shortcut;
  Size successes, waits, penalty, running;
  struct step steps[];
};

enum { ENOUGH = 16, MOST = 1024 };

static const char name[] = STEPS;

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
        !PyErr_ExceptionMatches(PyExc_RuntimeError) &&
        !PyErr_ExceptionMatches(PyExc_TypeError) && /* of no closure at all */
        !PyErr_ExceptionMatches(PyExc_ValueError)) /* of a cell that is empty */
      return NULL;
    PyErr_Clear();
  }
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}

/* All steps; where they are to make a shortcut, `b` is told what they come to. */
static int take_all(struct program *p, Object **registers, struct builder *b) {
  const struct step *end = p->steps + p->count;
  for (struct step *s = p->steps; s < end; s++) {
    struct known of = {NULL, 0, 0, 0};
    int relied = 0;
    if (b) {
      of = takes_of(s->op) ? b->known[s->of] : of;
      if (s->op == OPEN && of.object && !of.sealed && !is_none(s->ask))
        of.rests = note_rests(b, s, of.object);
      relied = (s->op == ITEM || (s->op >= LENGTH && s->op <= LACKS)) && relies(b, s);
    }
    if (!take(s, p->latest, registers))
      return 0;
    if (b)
      note(b, s, end, relied, of, registers[s->at]);
  }
  return 1;
}

static Object *taken(struct program *p, struct builder *b) {
  Object **registers = calloc((size_t)p->registers, sizeof *registers), *result;
  if (!registers)
    return PyErr_NoMemory();
  result = take_all(p, registers, b) ? gathered(p, registers) : not_told();
  for (Size k = 0; k < p->registers; k++)
    if (registers[k])
      Py_DecRef(registers[k]);
  free(registers);
  return result;
}

/* Take all steps, and keep the shortcut that they come to. */
static Object *taken_and_noted(struct program *p) {
  struct builder b = {new_shortcut(p->count, p->registers, p->used),
                      calloc((size_t)p->registers, sizeof *b.known), 0};
  Object *result = taken(p, b.made && b.known ? &b : NULL);
  if (b.made && b.known && !b.failed && result && !is_none(result) &&
      !p->shortcut && (b.made->held = calloc((size_t)b.made->count + 1, sizeof result))) {
    for (Size k = 0; k < p->used; k++)
      b.made->found[k] = b.known[p->found[k]].object;
    p->shortcut = b.made, b.made = NULL, p->successes = 0;
  }
  free_shortcut(b.made);
  free(b.known);
  return result;
}

static Object *shown(struct program *p) {
  struct shortcut *c = p->shortcut;
  Object *list = PyList_New(p->used);
  for (Size k = 0; list && k < p->used; k++) {
    Object *object = c->found[k] ? c->found[k] : c->registers[p->found[k]];
    Py_IncRef(object);
    PyList_SetItem(list, k, object);
  }
  return list;
}

/* What changes of a dict is read every time from now on. */
static void drop_shortcut(struct program *p, Size changed) {
  for (Size k = 0; changed >= 0 && k < p->count; k++)
    p->steps[k].restless |=
        relied_on(&p->steps[k], changed, &p->shortcut->relied[changed]);
  free_shortcut(p->shortcut);
  p->shortcut = NULL;
  p->penalty = p->successes >= ENOUGH ? 1 : p->penalty < MOST ? 2 * p->penalty : MOST;
  p->waits = p->penalty;
}

/* What the shortcut gives; NULL, perhaps with an error, where it does not fit. */
static Object *short_look(struct program *p) {
  struct shortcut *c = p->shortcut;
  Size changed = unchanged(c);
  Object *result = NULL;
  if (changed < c->relies) {
    drop_shortcut(p, changed);
    return NULL;
  }
  if (still(c, p->latest))
    result = shown(p);
  let_go(c);
  if (result)
    p->successes++;
  else if (!PyErr_Occurred())
    drop_shortcut(p, -1);
  return result;
}

/* What a shortcut says. Arrays that watched dicts hold are there until these tell; a
 * shortcut that is in use is left alone. */
static int asked(struct asked *self, Size used, int (*each)(void *, Object *, Size),
                 void *told) {
  struct program *p = (struct program *)self;
  struct shortcut *c = p->shortcut;
  Size before = events, k = 0;
  int fit;
  if (p->running || !c || used != p->used || unchanged(c) < c->relies)
    return CANNOT_SAY;
  while (k < used && c->found[k])
    k++;
  if (k < used) /* it comes to light in a register */
    return CANNOT_SAY;
  p->running++;
  fit = still(c, p->latest);
  for (k = 0; fit && k < used && events == before; k++)
    fit = each(told, c->found[k], k);
  fit = fit && events == before;
  let_go(c);
  p->running--;
  p->successes += fit;
  return fit ? 1 : PyErr_Occurred() ? 0 : CANNOT_SAY;
}

static Object *look(Object *self, Object *unused) {
  struct program *p = PyCapsule_GetPointer(PyTuple_GetItem(self, 0), name);
  Object *result = NULL;
  (void)unused;
  /* One that is under way, on another thread perhaps, has the shortcut to itself. */
  p->running++;
  if (p->running == 1 && p->shortcut)
    result = short_look(p);
  if (!result && PyErr_Occurred())
    result = not_told();
  else if (!result && p->running == 1 && !p->shortcut && --p->waits <= 0 &&
           may_watch())
    result = taken_and_noted(p);
  else if (!result)
    result = taken(p, NULL);
  p->running--;
  return result;
}

static Method method = {"look", look, NO_ARGUMENTS, NULL};

static void discard(Object *capsule) {
  struct program *p = PyCapsule_GetPointer(capsule, name);
  free_shortcut(p->shortcut);
  free(p);
}

static int is_register(const struct program *p, long number) {
  return number >= 0 && number < p->registers;
}

static int read_step(const struct program *p, struct step *s, Object *from) {
  s->op = PyLong_AsLong(PyTuple_GetItem(from, 0));
  s->at = PyLong_AsLong(PyTuple_GetItem(from, 1));
  s->of = PyLong_AsLong(PyTuple_GetItem(from, 2));
  s->value = PyTuple_GetItem(from, 3);
  s->ask = PyTuple_GetItem(from, 4);
  s->entry = 0, s->searches = SEARCHES, s->restless = 0, s->relies = -1;
  for (Size k = 0; s->op == APART && k < PyTuple_Size(s->value); k++)
    if (!is_register(p, PyLong_AsLong(PyTuple_GetItem(s->value, k))))
      return 0;
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
  p->asked.look = asked;
  p->latest = latest, p->registers = registers, p->count = count, p->used = used;
  p->found = (long *)(p->steps + count);
  p->shortcut = NULL, p->successes = p->waits = p->running = 0, p->penalty = 1;
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

/* Whether two lists hold the same objects, by identity: to compare them by more would
 * run code of anybody's. */
EXPORT int sapwood_same(Object *one, Object *other) {
  Size count = PyObject_Size(one);
  if (PyObject_Size(other) != count)
    return 0;
  for (Size k = 0; k < count; k++)
    if (PyList_GetItem(one, k) != PyList_GetItem(other, k))
      return 0;
  return 1;
}

/* Have no dict watched: this interpreter does not tell of all that changes. */
EXPORT void sapwood_watch_nothing(void) { watcher = REFUSED; }
