/* What is left of steps while the dicts that they read have not changed.
 *
 * When all steps have been taken, it is known which objects they came to. Those that a
 * watched dict holds are there as long as it says nothing: they are not read again, and
 * not owned, for a dict that goes says so, too. Of what else was read it is checked
 * that it is the same object, or its steps are taken again.
 */
#ifndef SAPWOOD_SHORTCUT_H
#define SAPWOOD_SHORTCUT_H

#include "steps.h"
#include "watched.h"

enum { SPARE = 64 };

struct relied {
  struct watched *on;
  Py_ssize_t changes; /* so many when it was read */
};

enum way {
  AGAIN,        /* take the step; `at` and `of`, where known, go into its registers */
  STILL_DICT,   /* the dict of object `of`, which is in `slot`, is `is`, and `gets` is
                   how its class gets attributes: else another one might be shown */
  STILL_READ,   /* the root, or the attribute or item of `of`, is `is` */
  STILL_PART,   /* what the function `of` is made of, as `part` tells, is `is` */
  STILL_CLASS,  /* the class of `at` is `is` */
  STILL_LATEST, /* the latest reference, of number `size`, is to `at` */
  STILL_LIST,   /* list `of` has the same `size` items */
};

struct check {
  enum way way;
  struct step *step;
  PyObject *at, *of, *is; /* not owned, and these are not either: */
  PyObject **items, **slot;
  getattrofunc gets;
  PyObject *(*part)(PyObject *);
  Py_ssize_t size;
};

struct shortcut {
  Py_ssize_t count, relies; /* checks and dicts */
  Py_ssize_t room;          /* for as many of each: what needs more has no shortcut */
  Py_ssize_t again;  /* how many checks take a step */
  Py_ssize_t events; /* changes of all dicts when these had not changed */
  struct check *checks;
  struct relied *relied;
  PyObject **found;     /* NULL: in its register */
  PyObject **registers; /* empty between looks */
  PyObject **held;      /* what is owned during one look */
};

/* What is known of a register: its object, if any, and whether a dict holds that. Of
 * what is opened anew every time it is known what is in there: it is `sealed`. */
struct known {
  PyObject *object;
  int firm, sealed;
  int rests; /* of what is about to be opened: on dicts, 1, or on lists, too, 2 */
};

struct builder {
  struct shortcut *made;
  struct known *known;
  int failed;
};

static void free_shortcut(struct shortcut *c) {
  if (!c)
    return;
  for (Py_ssize_t k = 0; k < c->relies; k++)
    leave_watched(c->relied[k].on);
  for (Py_ssize_t k = 0; c->checks && k < c->count; k++)
    free(c->checks[k].items);
  free(c->checks), free(c->relied), free(c->found), free(c->registers), free(c->held);
  free(c);
}

static struct shortcut *new_shortcut(Py_ssize_t steps, Py_ssize_t registers,
                                     Py_ssize_t used) {
  struct shortcut *c = calloc(1, sizeof *c);
  if (!c)
    return NULL;
  c->room = steps + SPARE;
  c->checks = calloc((size_t)c->room, sizeof *c->checks);
  c->relied = calloc((size_t)c->room, sizeof *c->relied);
  c->found = calloc((size_t)used + 1, sizeof *c->found);
  c->registers = calloc((size_t)registers + 1, sizeof *c->registers);
  if (c->checks && c->relied && c->found && c->registers)
    return c;
  free_shortcut(c);
  return NULL;
}

/* Making one, step by step, while all steps are taken. */

static struct check *check(struct builder *b, enum way way, struct step *s,
                           PyObject *is) {
  struct shortcut *c = b->made;
  struct check *made;
  if (c->count == c->room) {
    b->failed = 1;
    return NULL;
  }
  made = &c->checks[c->count++], c->again += way == AGAIN;
  made->way = way, made->step = s, made->is = is;
  made->at = tests_at(s->op) ? b->known[s->at].object : NULL;
  made->of = takes_of(s->op) ? b->known[s->of].object : NULL;
  return made;
}

/* Rely on a dict, as it is now; NULL where it cannot be watched. */
static struct watched *rely(struct builder *b, struct step *s, PyObject *dict) {
  struct shortcut *c = b->made;
  Py_ssize_t k = 0;
  while (k < c->relies && c->relied[k].on->dict != dict)
    k++;
  if (k == c->relies) {
    struct watched *w = k < c->room ? use_watched(dict) : NULL;
    if (!w)
      return NULL;
    c->relied[c->relies++] = (struct relied){w, w->changes};
  }
  s->relies = k;
  return c->relied[k].on;
}

/* Rely on what a step will read of a dict; false where it is to be taken again. */
static int relies(struct builder *b, struct step *s) {
  struct known known = b->known[s->op == ITEM ? s->of : s->at];
  PyObject *dict = known.object;
  struct watched *w;
  s->relies = -1;
  if (known.sealed || s->restless || !dict || Py_TYPE(dict) != &PyDict_Type ||
      !(w = rely(b, s, dict)))
    return 0;
  w->whole |=
      s->op == LENGTH || s->op == KEYS || (s->op == LACKS && !PyDict_Size(dict));
  if (s->op == ITEM)
    count_key(w, s->value);
  else if (s->op == KEYS || (s->op == LACKS && !w->whole))
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(s->value); k++)
      count_key(w, item(s->value, k));
  return 1;
}

static void now_known(struct builder *b, const struct step *s, PyObject *object,
                      int firm) {
  b->known[s->at] = (struct known){object, firm, 0, 0};
}

static int is_among(long number, PyObject *numbers) {
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(numbers); k++)
    if (PyLong_AsLong(item(numbers, k)) == number)
      return 1;
  return 0;
}

/* Whether later steps look into what a step has read. To ask whether another is the
 * same is no look: what is bound anew by every replay may stand in two slots. */
static int looked_into(const struct step *s, const struct step *end) {
  for (const struct step *next = s + 1; next < end; next++) {
    if (takes_of(next->op) && next->op != SAME && next->of == s->at)
      return 1;
    if (next->op == APART && is_among(s->at, next->value))
      return 1;
    if (!tests_at(next->op) && next->at == s->at)
      return 0;
  }
  return 0;
}

static PyObject *read_again(const struct step *s, PyObject *of) {
  return s->op == ROOT   ? PyObject_CallNoArgs(s->value)
         : s->op == ITEM ? PyObject_GetItem(of, s->value)
                         : PyObject_GetAttr(of, s->value);
}

static int gives_again(const struct step *s, PyObject *of, const PyObject *value) {
  PyObject *again = read_again(s, of);
  int same = again == value;
  if (!again)
    PyErr_Clear();
  Py_XDECREF(again);
  return same;
}

/* What tells an attribute of functions without a look-up, or NULL. */
static PyObject *(*part_of(PyObject *of, PyObject *attribute))(PyObject *) {
  static const struct {
    const char *name;
    PyObject *(*tells)(PyObject *);
  } parts[] = {{"__code__", PyFunction_GetCode},
               {"__defaults__", PyFunction_GetDefaults},
               {"__kwdefaults__", PyFunction_GetKwDefaults}};
  for (size_t k = 0; Py_TYPE(of) == &PyFunction_Type && k < 3; k++)
    if (!PyUnicode_CompareWithASCIIString(attribute, parts[k].name))
      return parts[k].tells;
  return NULL;
}

static int is_part(PyObject *(*tells)(PyObject *), PyObject *of,
                   const PyObject *value) {
  const PyObject *found;
  if (Py_TYPE(of) != &PyFunction_Type)
    return 0;
  found = tells(of);
  return found ? found == value : Py_IsNone(value);
}

static void note_slot(struct builder *b, struct step *s, const struct step *end,
                      struct known of, PyObject *value) {
  PyObject *(*part)(PyObject *) =
      of.object && s->op == ATTRIBUTE ? part_of(of.object, s->value) : NULL;
  PyObject **dict = of.object && s->op == ATTRIBUTE && Py_TYPE(value) == &PyDict_Type
                        ? _PyObject_GetDictPtr(of.object)
                        : NULL;
  if (dict && *dict == value) {
    struct check *made = check(b, STILL_DICT, s, value);
    if (made)
      made->slot = dict, made->gets = Py_TYPE(of.object)->tp_getattro;
    now_known(b, s, value, 1);
  } else if (part && is_part(part, of.object, value)) {
    struct check *made = check(b, STILL_PART, s, value);
    if (made)
      made->part = part;
    now_known(b, s, value, 0);
  } else if (of.object && looked_into(s, end) && gives_again(s, of.object, value)) {
    check(b, STILL_READ, s, value);
    now_known(b, s, value, 0);
  } else {
    check(b, AGAIN, s, NULL);
    now_known(b, s, NULL, 0);
  }
}

static int is_weak(PyObject *reference) {
  return Py_TYPE(reference) == &_PyWeakref_RefType;
}

/* Rely on one dict, or have one list checked; false where neither can be. */
static int rest_on(struct builder *b, struct step *s, PyObject *on, PyObject *keys,
                   int *listed) {
  struct check *made;
  struct watched *w;
  if (Py_TYPE(on) != &PyList_Type) {
    w = rely(b, s, on);
    s->relies = -1;
    if (w && Py_IsNone(keys))
      w->any = 1;
    for (Py_ssize_t k = 0; w && !Py_IsNone(keys) && k < PyTuple_GET_SIZE(keys); k++)
      count_key(w, item(keys, k));
    return w != NULL;
  }
  *listed = 1;
  made = check(b, STILL_LIST, s, NULL);
  if (!made)
    return 0;
  made->of = on, made->size = PyObject_Size(on);
  made->items = malloc((size_t)(made->size + 1) * sizeof *made->items);
  for (Py_ssize_t k = 0; made->items && k < made->size; k++)
    made->items[k] = PyList_GetItem(on, k);
  return made->items != NULL;
}

/* Note that what was opened stays what it is while all that it rests on does. What is
 * given here is read before the thing is opened, and relied on from then on. */
static int note_rests(struct builder *b, struct step *s, PyObject *thing) {
  PyObject *rests = PyObject_CallOneArg(s->ask, thing), *each, *all = NULL;
  int listed = 0, fit = rests != NULL;
  if (rests && (all = PyObject_GetIter(rests)))
    while ((each = PyIter_Next(all))) {
      fit = fit && rest_on(b, s, item(each, 0), item(each, 1), &listed);
      Py_XDECREF(each);
    }
  fit = fit && all && !PyErr_Occurred();
  if (PyErr_Occurred())
    PyErr_Clear();
  Py_XDECREF(all);
  Py_XDECREF(rests);
  b->failed |= !fit;
  return fit ? 1 + listed : 0;
}

/* Of objects that stay it is known; else all of them are compared again. */
static void note_apart(struct builder *b, struct step *s) {
  Py_ssize_t count = PyTuple_GET_SIZE(s->value), known = 0;
  PyObject **items = calloc((size_t)count + 1, sizeof *items);
  struct check *made;
  for (Py_ssize_t k = 0; items && k < count; k++) {
    items[k] = b->known[PyLong_AsLong(item(s->value, k))].object;
    known += items[k] != NULL;
  }
  if (items && known == count) {
    free(items);
    return;
  }
  made = items ? check(b, AGAIN, s, NULL) : NULL;
  if (made)
    made->items = items;
  else
    free(items);
  b->failed |= !made;
}

static void note_test(struct builder *b, struct step *s, int relied) {
  struct known at = b->known[s->at];
  struct check *made;
  if (at.sealed) {
    b->failed |= s->op < LENGTH || s->op > LACKS;
    return;
  }
  if (relied || (s->op == IS && at.object))
    return;
  if (s->op == SAME && at.object && b->known[s->of].object)
    return;
  if (s->op == APART) {
    note_apart(b, s);
    return;
  }
  if (s->op == REFERS && at.firm && is_weak(s->value))
    return;
  made = check(b,
               s->op == CLASS && at.object    ? STILL_CLASS
               : s->op == LATEST && at.object ? STILL_LATEST
                                              : AGAIN,
               s, s->value);
  if (made && made->way == STILL_LATEST)
    made->size = s->of;
}

/* Note what a step has come to, which was taken with `of` in its register. */
static void note(struct builder *b, struct step *s, const struct step *end, int relied,
                 struct known of, PyObject *value) {
  if (tests_at(s->op))
    note_test(b, s, relied);
  else if (of.sealed) {
    b->failed |= s->op != ITEM;
    now_known(b, s, value, of.firm);
  } else if (s->op == OPEN && of.rests) {
    b->known[s->at] = (struct known){value, of.rests == 1, 1, 0};
  } else if (s->op == ROOT) {
    check(b, STILL_READ, s, value);
    now_known(b, s, value, 0);
  } else if (s->op == WHOLE && is_plain(of.object))
    now_known(b, s, value, of.firm);
  else if (s->op == ITEM &&
           (relied || (of.firm && Py_TYPE(of.object) == &PyTuple_Type)))
    now_known(b, s, value, 1);
  else if (s->op == ATTRIBUTE || (s->op == ITEM && is_plain(of.object)))
    note_slot(b, s, end, of, value);
  else {
    check(b, AGAIN, s, NULL);
    now_known(b, s, NULL, 0);
  }
}

/* Taking one. */

static PyObject **register_of(const struct shortcut *c, const struct step *s,
                              Py_ssize_t k) {
  return &c->registers[PyLong_AsLong(item(s->value, k))];
}

static int has_items(const struct check *c) {
  if (PyObject_Size(c->of) != c->size)
    return 0;
  for (Py_ssize_t k = 0; k < c->size; k++)
    if (PyList_GetItem(c->of, k) != c->items[k])
      return 0;
  return 1;
}

static int is_still(struct check *c, PyObject *latest, struct shortcut *all,
                    PyObject **held) {
  struct step *s = c->step;
  switch (c->way) {
  case AGAIN:
    if (c->at)
      fill(&all->registers[s->at], Py_NewRef(c->at));
    if (c->of)
      fill(&all->registers[s->of], Py_NewRef(c->of));
    for (Py_ssize_t k = 0; c->items && k < PyTuple_GET_SIZE(s->value); k++)
      if (c->items[k])
        fill(register_of(all, s, k), Py_NewRef(c->items[k]));
    return take(s, latest, all->registers);
  case STILL_DICT:
    return *c->slot == c->is && Py_TYPE(c->of)->tp_getattro == c->gets;
  case STILL_READ:
    *held = read_again(s, c->of);
    return *held == c->is;
  case STILL_PART:
    return is_part(c->part, c->of, c->is);
  case STILL_CLASS:
    return (const PyObject *)Py_TYPE(c->at) == c->is;
  case STILL_LATEST:
    return refers(PyList_GetItem(latest, c->size), c->at);
  case STILL_LIST:
    return has_items(c);
  }
  return 0;
}

/* Whether a step relies on what has changed of a dict, as far as that is known. */
static int relied_on(struct step *s, Py_ssize_t number, const struct relied *changed) {
  const struct watched *w = changed->on;
  if (s->relies != number)
    return 0;
  if (s->op != ITEM || w->changes != changed->changes + 1 || w->latest == UNKNOWN)
    return 1;
  return Py_TYPE(s->value) != &PyUnicode_Type || PyObject_Hash(s->value) == w->latest;
}

/* Return the first dict that has changed, or their number. */
static Py_ssize_t unchanged(struct shortcut *c) {
  Py_ssize_t k = 0;
  if (c->events == events)
    return c->relies;
  while (k < c->relies && c->relied[k].on->changes == c->relied[k].changes)
    k++;
  if (k == c->relies)
    c->events = events;
  return k;
}

/* Whether all is as it was. What runs meanwhile may change dicts: then it is not. */
static int still(struct shortcut *c, PyObject *latest) {
  Py_ssize_t before = events, k = 0;
  while (k < c->count && events == before &&
         is_still(&c->checks[k], latest, c, &c->held[k]))
    k++;
  return k == c->count && events == before;
}

static void let_go(struct shortcut *c) {
  for (Py_ssize_t k = 0; k < c->count; k++)
    if (c->held[k])
      fill(&c->held[k], NULL);
  for (Py_ssize_t k = 0; c->again && k < c->count; k++) {
    const struct check *each = &c->checks[k];
    if (each->way != AGAIN)
      continue;
    fill(&c->registers[each->step->at], NULL);
    for (Py_ssize_t n = 0; each->items && n < PyTuple_GET_SIZE(each->step->value); n++)
      fill(register_of(c, each->step, n), NULL);
    if (takes_of(each->step->op))
      fill(&c->registers[each->step->of], NULL);
  }
}

#endif
