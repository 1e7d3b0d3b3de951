/* Dicts that tell when what is in them changes, since CPython 3.12.
 *
 * Whoever relies on some keys of a dict asks once that it be watched, and from then on
 * compares one number. A change of a key that nobody asked for does not count, for
 * globals are written all the time. All is done under the interpreter's lock.
 */
#ifndef SAPWOOD_WATCHED_H
#define SAPWOOD_WATCHED_H

#include "native.h"

struct watched {
  PyObject *dict; /* not owned; NULL once it is gone */
  struct watched *next;
  Py_ssize_t changes, users, keys;
  Py_ssize_t latest; /* the hash of the key that changed last, or UNKNOWN */
  int whole;         /* which keys there are counts, too */
  int any;           /* every change counts */
  Py_ssize_t *hashes;
};

enum { BUCKETS = 4096, NOT_ASKED = -2, REFUSED = -1, UNKNOWN = -1 };

#if PY_VERSION_HEX < 0x030C0000 /* nobody is told there */
typedef enum {
  PyDict_EVENT_ADDED,
  PyDict_EVENT_MODIFIED,
  PyDict_EVENT_DELETED,
  PyDict_EVENT_CLONED,
  PyDict_EVENT_CLEARED,
  PyDict_EVENT_DEALLOCATED
} PyDict_WatchEvent;
typedef int (*PyDict_WatchCallback)(PyDict_WatchEvent, PyObject *, PyObject *,
                                    PyObject *);

static int PyDict_AddWatcher(PyDict_WatchCallback callback) {
  return callback ? -1 : 0;
}
static int PyDict_Watch(int id, PyObject *dict) { return dict ? -1 : id; }
static int PyDict_Unwatch(int id, PyObject *dict) { return dict ? -1 : id; }
#endif

static struct watched *buckets[BUCKETS];
static int watcher = NOT_ASKED;
static Py_ssize_t events; /* changes of all of them */

static struct watched **bucket(const PyObject *dict) {
  return &buckets[((size_t)dict >> 4) % BUCKETS];
}

static struct watched *find_watched(const PyObject *dict) {
  struct watched *w = *bucket(dict);
  while (w && w->dict != dict)
    w = w->next;
  return w;
}

static void forget_watched(struct watched *w) {
  struct watched **at = bucket(w->dict);
  while (*at != w)
    at = &(*at)->next;
  *at = w->next;
  w->dict = NULL;
}

static int concerns(const struct watched *w, PyDict_WatchEvent event, PyObject *key) {
  Py_ssize_t hash;
  if (w->any || event >= PyDict_EVENT_CLONED || Py_TYPE(key) != &PyUnicode_Type)
    return 1;
  if (w->whole && event != PyDict_EVENT_MODIFIED)
    return 1;
  hash = PyObject_Hash(key); /* of a string: no code runs */
  for (Py_ssize_t k = 0; k < w->keys; k++)
    if (w->hashes[k] == hash)
      return 1;
  return 0;
}

/* Called before a dict changes; the lock is not let go of till it has. */
static int dict_changes(PyDict_WatchEvent event, PyObject *dict, PyObject *key,
                        PyObject *value) {
  struct watched *w = find_watched(dict);
  (void)value;
  if (w && concerns(w, event, key)) {
    w->changes++, events++;
    w->latest = event < PyDict_EVENT_CLONED && Py_TYPE(key) == &PyUnicode_Type
                    ? PyObject_Hash(key)
                    : UNKNOWN;
    if (event == PyDict_EVENT_DEALLOCATED)
      forget_watched(w);
  }
  return 0;
}

static int may_watch(void) {
  if (watcher == NOT_ASKED) {
    watcher = PyDict_AddWatcher(dict_changes);
    if (PyErr_Occurred())
      PyErr_Clear(); /* others have them all */
  }
  return watcher >= 0;
}

static struct watched *new_watched(PyObject *dict) {
  struct watched *w = calloc(1, sizeof *w);
  if (!w)
    return NULL;
  if (PyDict_Watch(watcher, dict) < 0) {
    PyErr_Clear();
    free(w);
    return NULL;
  }
  w->dict = dict, w->next = *bucket(dict);
  return *bucket(dict) = w;
}

/* Begin to use a dict's watch; NULL where it cannot be watched. */
static struct watched *use_watched(PyObject *dict) {
  struct watched *w = may_watch() ? find_watched(dict) : NULL;
  if (!w && may_watch())
    w = new_watched(dict);
  if (w)
    w->users++;
  return w;
}

static void leave_watched(struct watched *w) {
  if (--w->users)
    return;
  if (w->dict) {
    if (PyDict_Unwatch(watcher, w->dict) < 0)
      PyErr_Clear();
    forget_watched(w);
  }
  free(w->hashes);
  free(w);
}

/* Have changes of a key count; those of no string count by all that changes. */
static void count_key(struct watched *w, PyObject *key) {
  Py_ssize_t hash, *more;
  if (Py_TYPE(key) != &PyUnicode_Type) {
    w->any = 1;
    return;
  }
  hash = PyObject_Hash(key);
  for (Py_ssize_t k = 0; k < w->keys; k++)
    if (w->hashes[k] == hash)
      return;
  more = realloc(w->hashes, (size_t)(w->keys + 1) * sizeof *more);
  if (!more) {
    w->any = 1;
    return;
  }
  more[w->keys++] = hash, w->hashes = more;
}

#endif
