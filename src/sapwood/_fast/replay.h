/* What a fast replay in C is told, and what it is made of. */
#ifndef SAPWOOD_REPLAY_H
#define SAPWOOD_REPLAY_H

#include "probe.h"
#include "state.h"

enum { NOTES = 512 };

/* What is at which place of the tuple. */
enum place {
  MISS,
  STATE,        /* a weak reference to its `ReplayState`, and the `epoch` there */
  STREAM_EPOCH, /* which is `now` what it was */
  GUARDS,       /* whose `epoch` is `guard_epoch` */
  LOCK,         /* its `acquire` and `release`, and whether this thread has it */
  QUEUE,        /* what finalisers gave back, and what sees to that */
  RECORDINGS,   /* whose `single_stream` it is, where nothing is to be ordered */
  STREAM,       /* a weak reference */
  PAGES,        /* whose `live` pages are others', whose `uses` are the stream's */
  MASKS,        /* pages that nobody may have, pages that the replay overwrites, and 1
                   where it writes arrays that others have */
  GIVEN,        /* what is to be known of each argument: see `read_argument` */
  OTHERS,       /* starts of what is used besides, and how far all up to one reach */
  LOOK,         /* gives the arrays that the function reads */
  PROBES,       /* what knows the arguments, and what knows these arrays */
  HELD,         /* objects by number, and how many references there are */
  COUNTED,      /* a function, what it is called with, and what it gives */
  MAKERS,       /* of each new array: a function by number, or one and four arguments */
  PICKS,        /* what the result is picked from: constants, and places; or () */
  SHAPE,        /* makes a nest of a list, or None for one value; how many are bound */
  BOUND,        /* of each that is bound: an array and an attribute, or what binds it and
                   None; and the place in the picks */
  EXPECTED,     /* latest references, and (place in there, place in the picks)... */
  NATIVE,       /* addresses: see `read_native` */
  WHICH,  /* references to what is reached, as they are and were; of each argument, the
             place of one that refers to it, or -1; or () */
  RIVALS, /* of each recording that copies less out, the pages that it overwrites */
  PLACES
};

struct argument {
  uint64_t length;
  int fixed;
  Py_ssize_t within; /* the argument behind whose first byte it lies, or -1 */
  long long behind;  /* so many bytes */
};

/* Where the parameters of a copy, in or back, say where an argument is. */
struct word {
  uint64_t *at, before;
  Py_ssize_t argument;
};

struct copies {
  void *node, *params;
  struct word *words;
  Py_ssize_t used;
};

struct maker {
  PyObject *function, *argument; /* it may have none */
};

/* What nobody else may have: so many references to it there are then. */
struct use {
  PyObject *object;
  Py_ssize_t references;
};

struct replay {
  PyObject_HEAD vectorcallfunc call;
  PyObject *spec;
  PyObject *parts[PLACES];                         /* the specification owns them */
  PyObject *acquire, *release, *is_mine, *waiting; /* these, too */
  const struct stream_epoch *stream_epoch;
  const struct guard_state *guards;
  const struct recordings_state *recordings;
  struct page_state *pages;
  long long epoch, writes;
  Py_ssize_t count, read, made, bound, others, kept;
  struct argument *arguments;
  Py_ssize_t *order; /* the arguments, by where they were in the last call */
  struct word *words;
  const struct probe *given, *seen; /* of the arguments, and of what is read */
  struct maker *makers;
  struct use *uses;
  uint64_t *lows, *starts, *ends;
  PyObject *live, *claimed, *rivalled; /* owned: masks that were found to fit */
  int (*launch)(void *, void *), (*set)(void *, void *, const void *);
  int (*context_of)(void **);
  void *exec, *context, *stream;
  PyObject *launcher; /* in the place of `launch`, or None; the specification owns it */
  Py_ssize_t nodes;
  struct copies *copies;
  int32_t ordinal;
  int alone; /* the one new array is the result */
  int loose; /* an argument is another one, which others may have used */
  Py_ssize_t noted;
  long long notes[2 * NOTES];
};

static inline PyObject *at(const struct replay *r, enum place place) {
  return r->parts[place];
}

static inline uint64_t number(PyObject *tuple, Py_ssize_t k) {
  return PyLong_AsUnsignedLongLong(item(tuple, k));
}

#endif
