/* Segments of given address ranges, for allocators that ask under a lock of their own.
 *
 * Nothing here calls Python, CUDA or an allocator while it serves, and no address is
 * ever touched. A range has a slot, and a slot has two functions of its own, because
 * those who call them pass nothing that would tell ranges apart. Who gives a segment
 * back does not wait for the work that uses it: its pages go to requests of the same
 * stream, which are ordered after that work, and to all others after a `settle`.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 1024
#define EXPORT __attribute__((visibility("default")))
#define APART static __attribute__((noinline)) /* else the compiler makes 1024 copies */

enum users { NOBODY, ITS_STREAM, OTHERS };

enum action { SERVED = 1, REFUSED = 2, RETURNED = 3, STRAY = 4 };

struct entry {
  uint64_t address, size, stream, action;
};

struct counters {
  uint64_t served, refused, returned, strays; /* requests so far */
  uint64_t held, held_bytes, peak_bytes;      /* segments out, and their pages */
  uint64_t wanted;                            /* the largest request refused */
  uint64_t logged;                            /* entries so far; the first are kept */
};

struct range {
  uintptr_t base;
  size_t page, pages;
  int device, reuse;
  size_t fresh;         /* pages from here on were never served */
  uint32_t *span;       /* pages of the segment that begins at a page; 0: none does */
  uintptr_t *stream;    /* whom a page was served to last */
  unsigned char *users; /* whose work may still use a page: an enum users */
  struct entry *log;
  size_t log_size;
  struct counters now;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges[SLOTS];
static size_t next_slot;

/* Ranges without functions of their own, in slots from SLOTS on: of those, one at a time
 * is served from on each device. */
static struct range **shared;
static size_t shared_room;
#define DEVICES 64
static struct range *turns[DEVICES];

/* Under the lock. */
static struct range *at(int slot) {
  return slot < SLOTS ? ranges[slot] : shared[slot - SLOTS];
}

static void note(struct range *r, uint64_t action, uintptr_t address, size_t size,
                 uintptr_t stream) {
  if (r->now.logged < r->log_size)
    r->log[r->now.logged] = (struct entry){address, size, stream, action};
  r->now.logged++;
}

static int may_have(const struct range *r, size_t page, uintptr_t stream) {
  return r->users[page] == NOBODY ||
         (r->users[page] == ITS_STREAM && r->stream[page] == stream);
}

/* The first of `count` free pages that `stream` may have, or r->pages. */
static size_t find(const struct range *r, size_t count, uintptr_t stream) {
  size_t run = 0;
  if (!r->reuse)
    return r->pages - r->fresh >= count ? r->fresh : r->pages;
  for (size_t page = 0; page < r->pages; page++) {
    if (r->span[page]) {
      page += r->span[page] - 1;
      run = 0;
    } else if (!may_have(r, page, stream)) {
      run = 0;
    } else if (++run == count) {
      return page + 1 - count;
    }
  }
  return r->pages;
}

static void *serve_in(struct range *r, size_t size, int device, uintptr_t stream) {
  size_t count = size / r->page + (size % r->page != 0);
  size_t first = r->pages;
  if (size && count <= r->pages && device == r->device)
    first = find(r, count, stream);
  if (first == r->pages) {
    r->now.refused++;
    if (size > r->now.wanted)
      r->now.wanted = size;
    note(r, REFUSED, 0, size, stream);
    return NULL;
  }
  r->span[first] = (uint32_t)count;
  for (size_t page = first; page < first + count; page++) {
    r->stream[page] = stream;
    r->users[page] = ITS_STREAM;
  }
  if (first + count > r->fresh)
    r->fresh = first + count;
  r->now.served++;
  r->now.held++;
  r->now.held_bytes += count * r->page;
  if (r->now.held_bytes > r->now.peak_bytes)
    r->now.peak_bytes = r->now.held_bytes;
  note(r, SERVED, r->base + first * r->page, size, stream);
  return (void *)(r->base + first * r->page);
}

static void take_back_in(struct range *r, uintptr_t address, size_t size,
                         uintptr_t stream) {
  size_t page = (address - r->base) / r->page; /* huge below the base */
  if (page >= r->pages || address != r->base + page * r->page || !r->span[page]) {
    r->now.strays++;
    note(r, STRAY, address, size, stream);
    return;
  }
  r->now.returned++;
  r->now.held--;
  r->now.held_bytes -= r->span[page] * r->page;
  if (stream != r->stream[page])
    memset(r->users + page, OTHERS, r->span[page]);
  r->span[page] = 0;
  note(r, RETURNED, address, size, stream);
}

APART void *serve(size_t slot, size_t size, int device, void *stream) {
  void *address = NULL;
  pthread_mutex_lock(&lock);
  if (ranges[slot])
    address = serve_in(ranges[slot], size, device, (uintptr_t)stream);
  pthread_mutex_unlock(&lock);
  return address;
}

APART void take_back(size_t slot, void *address, size_t size, void *stream) {
  pthread_mutex_lock(&lock);
  if (ranges[slot])
    take_back_in(ranges[slot], (uintptr_t)address, size, (uintptr_t)stream);
  pthread_mutex_unlock(&lock);
}

/* The same for all ranges without functions of their own. What comes back and is of none
 * of them belongs to nobody here. */
EXPORT void *sapwood_serve_shared(size_t size, int device, void *stream) {
  void *address = NULL;
  pthread_mutex_lock(&lock);
  if (device >= 0 && device < DEVICES && turns[device])
    address = serve_in(turns[device], size, device, (uintptr_t)stream);
  pthread_mutex_unlock(&lock);
  return address;
}

EXPORT void sapwood_take_back_shared(void *address, size_t size, int device,
                                     void *stream) {
  (void)device;
  pthread_mutex_lock(&lock);
  for (size_t k = 0; k < shared_room; k++) {
    struct range *r = shared[k];
    if (r && ((uintptr_t)address - r->base) / r->page < r->pages) {
      take_back_in(r, (uintptr_t)address, size, (uintptr_t)stream);
      break;
    }
  }
  pthread_mutex_unlock(&lock);
}

/* Begin or end to serve a device's requests from a shared range. */
EXPORT void sapwood_turn(int device, int slot, int begins) {
  struct range **turn;
  pthread_mutex_lock(&lock);
  turn = &turns[device];
  if (begins)
    *turn = at(slot);
  else if (*turn == at(slot))
    *turn = NULL;
  pthread_mutex_unlock(&lock);
}

EXPORT int sapwood_slots(void) { return SLOTS; }

EXPORT int sapwood_devices(void) { return DEVICES; }

/* Two functions for each slot below SLOTS, found by name, as sapwood_serve_0x00F. */
#define EACH(X, n)                                                                     \
  X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7)                      \
  X(n##8) X(n##9) X(n##A) X(n##B) X(n##C) X(n##D) X(n##E) X(n##F)
#define EACH_256(X, n)                                                                 \
  EACH(X, n##0) EACH(X, n##1) EACH(X, n##2) EACH(X, n##3)                              \
  EACH(X, n##4) EACH(X, n##5) EACH(X, n##6) EACH(X, n##7)                              \
  EACH(X, n##8) EACH(X, n##9) EACH(X, n##A) EACH(X, n##B)                              \
  EACH(X, n##C) EACH(X, n##D) EACH(X, n##E) EACH(X, n##F)
#define EACH_SLOT(X)                                                                   \
  EACH_256(X, 0x0) EACH_256(X, 0x1) EACH_256(X, 0x2) EACH_256(X, 0x3)

#define PAIR(n)                                                                        \
  EXPORT void *sapwood_serve_##n(size_t size, int device, void *stream) {              \
    return serve(n, size, device, stream);                                             \
  }                                                                                    \
  EXPORT void sapwood_take_back_##n(void *address, size_t size, int device,            \
                                    void *stream) {                                    \
    (void)device;                                                                      \
    take_back(n, address, size, stream);                                               \
  }
EACH_SLOT(PAIR)

static void discard(struct range *r) {
  if (r) {
    free(r->span);
    free(r->stream);
    free(r->users);
    free(r->log);
    free(r);
  }
}

static struct range *make(uintptr_t base, size_t page, size_t pages, int device,
                          int reuse, size_t log_size) {
  struct range *r = calloc(1, sizeof *r);
  if (!r)
    return NULL;
  r->base = base, r->page = page, r->pages = pages;
  r->device = device, r->reuse = reuse, r->log_size = log_size;
  r->span = calloc(pages, sizeof *r->span);
  r->stream = calloc(pages, sizeof *r->stream);
  r->users = calloc(pages, sizeof *r->users);
  r->log = calloc(log_size ? log_size : 1, sizeof *r->log);
  if (r->span && r->stream && r->users && r->log)
    return r;
  discard(r);
  return NULL;
}

/* A free slot for a range with functions of its own, or -1. They are taken in turn, so
 * that one that was closed rests for as long as can be. */
static int own_slot(struct range *r) {
  for (size_t turn = 0; turn < SLOTS; turn++) {
    size_t candidate = (next_slot + turn) % SLOTS;
    if (!ranges[candidate]) {
      ranges[candidate] = r;
      next_slot = candidate + 1;
      return (int)candidate;
    }
  }
  return -1;
}

/* A free slot for any other, or -2 where the host has no memory. */
static int shared_slot(struct range *r) {
  size_t k = 0, room = shared_room ? 2 * shared_room : 64;
  struct range **more;
  while (k < shared_room && shared[k])
    k++;
  if (k == shared_room) {
    if (!(more = realloc(shared, room * sizeof *more)))
      return -2;
    memset(more + shared_room, 0, (room - shared_room) * sizeof *more);
    shared = more, shared_room = room;
  }
  shared[k] = r;
  return SLOTS + (int)k;
}

/* The slot of a new range; -1 where all are taken, -2 where the host has no memory. */
EXPORT int sapwood_open(uintptr_t base, size_t page, size_t pages, int device,
                        int reuse, size_t log_size, int shares) {
  struct range *r = make(base, page, pages, device, reuse, log_size);
  int slot = -2;
  pthread_mutex_lock(&lock);
  if (r)
    slot = shares ? shared_slot(r) : own_slot(r);
  pthread_mutex_unlock(&lock);
  if (slot < 0)
    discard(r);
  return slot;
}

/* End a range, unless segments of it are out; returns how many are. */
EXPORT uint64_t sapwood_close(int slot) {
  struct range *r;
  uint64_t held;
  pthread_mutex_lock(&lock);
  r = at(slot);
  held = r->now.held;
  if (!held && r->device >= 0 && r->device < DEVICES && turns[r->device] == r)
    turns[r->device] = NULL;
  if (!held)
    *(slot < SLOTS ? &ranges[slot] : &shared[slot - SLOTS]) = NULL;
  pthread_mutex_unlock(&lock);
  if (!held)
    discard(r);
  return held;
}

/* All work on free pages is over: any stream may have them. */
EXPORT void sapwood_settle(int slot) {
  struct range *r;
  pthread_mutex_lock(&lock);
  r = at(slot);
  memset(r->users, NOBODY, r->pages);
  for (size_t page = 0; page < r->pages; page++)
    if (r->span[page])
      memset(r->users + page, ITS_STREAM, r->span[page]);
  pthread_mutex_unlock(&lock);
}

/* Begin anew, unless segments are out; returns how many are. */
EXPORT uint64_t sapwood_reset(int slot) {
  struct range *r;
  uint64_t held;
  pthread_mutex_lock(&lock);
  r = at(slot);
  held = r->now.held;
  if (!held) {
    memset(r->users, NOBODY, r->pages);
    memset(&r->now, 0, sizeof r->now);
    r->fresh = 0;
  }
  pthread_mutex_unlock(&lock);
  return held;
}

EXPORT void sapwood_count(int slot, struct counters *now) {
  pthread_mutex_lock(&lock);
  *now = at(slot)->now;
  pthread_mutex_unlock(&lock);
}

/* Copy entries [from, from + count) of the log; returns how many there were. */
EXPORT size_t sapwood_read_log(int slot, size_t from, size_t count,
                               struct entry *entries) {
  struct range *r;
  size_t kept, found = 0;
  pthread_mutex_lock(&lock);
  r = at(slot);
  kept = r->now.logged < r->log_size ? r->now.logged : r->log_size;
  if (from < kept) {
    found = kept - from < count ? kept - from : count;
    memcpy(entries, r->log + from, found * sizeof *entries);
  }
  pthread_mutex_unlock(&lock);
  return found;
}
