/* What a fast replay in C is told, and what it is made of. */
#ifndef SAPWOOD_REPLAY_H
#define SAPWOOD_REPLAY_H

#include "asked.h"
#include <stdint.h>
#include <string.h>

enum { WORDS = 2, NOTES = 512, CUDA = 2, COMPLEX = 5, VECTOR = 16, PASSED = 4 };

/* What is at which place of the tuple. */
enum place {
  MISS,
  SLOTS,    /* where they lie in their objects, in the order of `enum slot` */
  FAST_REPLAY,   /* a weak reference to it, for what it has in the first of the slots */
  STATE,    /* its `era` and `_marks` */
  CHANGES,  /* whose `latest` is `_changes` */
  GLANCE,   /* whose `renewals` are `_renewals` */
  LOCK,     /* its `acquire` and `release`, and whether this thread has it */
  QUEUE,    /* what finalisers gave back, and what sees to that */
  FOREST,   /* whose `alone` is the stream, where arguments are others */
  STREAM,   /* a weak reference */
  PAGES,    /* whose `live` pages are others', whose `uses` are the stream's */
  MASKS,    /* pages that nobody may have, pages that the replay overwrites */
  GIVEN,    /* what is to be known of each argument: see `read_argument` */
  OTHERS,   /* starts of what is used besides, and how far all up to one reach */
  LOOK,     /* gives the arrays that the function reads */
  MARKS,    /* their addresses, and whether they require grad or () */
  HELD,     /* objects by number, and how many references there are */
  COUNTED,  /* a function, what it is called with, and what it gives */
  MAKERS,   /* of each new array: a function by number, or one and four arguments */
  PICKS,    /* what the result is picked from: constants, and places; or () */
  SHAPE,    /* makes a nest of a list, or None for one value; how many are bound */
  BOUND,    /* (array, attribute, place in the picks) of each that is bound */
  EXPECTED, /* latest references, and (place in there, place in the picks)... */
  NATIVE,   /* addresses: see `read_native` */
  WANTS,    /* the attribute that says whether an array requires grad */
  FLAGS,    /* (attribute, is called) of all that tells tensors apart besides */
  WHICH,    /* references to what is reached, as they are and were; of each argument, the
               place of one that refers to it, or -1; or () */
  RIVALS,   /* of each recording that copies less out, the pages that it overwrites */
  PLACES
};

/* Slots that are read. */
enum slot {
  ERA,
  CHANGES_,
  MARKS_,
  RENEWALS_,
  KEPT,
  LATEST,
  REVOKED,
  RENEWALS,
  ALONE,
  LIVE,
  USES,
  SLOTS_READ
};

typedef struct {
  void *data;
  int32_t device, ordinal, dims;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t offset;
} Tensor;

struct exchange {
  uint32_t major, minor;
  void *previous, *allocate, *managed, *to_python;
  int (*look)(Object *, Tensor *);
  int (*current)(int32_t, int32_t, void **);
};

struct word {
  uint64_t *at, before;
  Size node; /* whose parameters it is of */
};

/* What tells the same of a pointer to an array, sooner. Each returns 0. */
struct quick {
  int (*data)(const void *, void **); /* or NULL: there is none of them */
  int (*dims)(const void *, int64_t *);
  int (*shape)(const void *, int64_t **), (*strides)(const void *, int64_t **);
  int (*dtype)(const void *, int32_t *);
};

/* What an array looked like: shape and strides are its own. */
struct known {
  Tensor seen;
  int flags, lazy; /* lazy: it may be conjugate, which its flags say alone */
};

struct argument {
  Object *reference, *class;
  struct known known;
  uint64_t address, length;
  int fixed;
  Size used;
  struct word words[WORDS]; /* of the copies in and back, where there are any */
};

struct copies {
  void *node, *params;
};

struct maker {
  Object *function, *arguments[PASSED];
  Size count;
};

/* What nobody else may have: so many references to it there are then. */
struct use {
  Object *object;
  Size references;
};

struct again {
  Object *parts[PLACES]; /* the specification owns them */
  Object *acquire, *release, *is_mine, *waiting; /* these, too */
  Size slots[SLOTS_READ];
  Size count, read, made, bound, others, kinds, kept;
  struct argument *arguments;
  struct known *known; /* of what is read */
  struct maker *makers;
  struct use *uses;
  uint64_t *lows, *starts, *ends, *marks;
  Object *live, *claimed, *rivalled; /* owned: masks that were found to fit */
  struct asked *asked; /* or NULL */
  const struct exchange *exchange;
  struct quick quick;
  Size inside;
  int (*launch)(void *, void *), (*set)(void *, void *, const void *);
  int (*context_of)(void **);
  void *exec, *context, *stream;
  Size nodes;
  struct copies *copies;
  int32_t ordinal;
  int grad, alone; /* alone: the one new array is the result */
  Size noted;
  long long notes[2 * NOTES];
};

static Object *at(const struct again *a, enum place place) { return a->parts[place]; }

static Object *item(Object *tuple, Size k) { return PyTuple_GetItem(tuple, k); }

static uint64_t number(Object *tuple, Size k) {
  return PyLong_AsUnsignedLongLong(item(tuple, k));
}

static Object *given(Object *object) {
  Py_IncRef(object);
  return object;
}

/* A slot, which its owner keeps while nothing else runs; not owned, NULL if empty. */
static Object *slot_of(const struct again *a, Object *owner, enum slot which) {
  return *(Object **)((char *)owner + a->slots[which]);
}

static Object *slot(const struct again *a, enum place of, enum slot which) {
  return slot_of(a, at(a, of), which);
}

static int same_number(Object *one, Object *other) {
  return one == other ||
         (one && other && PyLong_AsLong(one) == PyLong_AsLong(other));
}

#endif
