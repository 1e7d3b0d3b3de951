/* How C asks the guards of a recording where nothing has changed: without a list. */
#ifndef SAPWOOD_ASKED_H
#define SAPWOOD_ASKED_H

#include "cpython.h"

enum { CANNOT_SAY = -1 };

#define STEPS "sapwood.steps" /* the capsule of a program, which begins with this: */

/* Whether all is as it was, and `each` agrees on each used array, by its number: 1, 0
 * with an error, or CANNOT_SAY. Nobody owns the arrays: they are good for `each`. */
struct asked {
  int (*look)(struct asked *, Size used, int (*each)(void *, Object *, Size), void *);
};

#endif
