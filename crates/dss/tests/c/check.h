/* Checks that stop the program and say where. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                   \
    do {                                                                              \
        if (!(what)) {                                                                \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);        \
            _exit(1);                                                                 \
        }                                                                             \
    } while (0)

/* The result of a call is this errno, negated; 0 for success. */
#define EXPECT(errno_wanted, call)                                                    \
    do {                                                                              \
        int result_ = (call);                                                         \
        if (result_ != -(errno_wanted)) {                                             \
            fprintf(stderr, "%s:%d: %s gave %d (%s), not %d (%s)\n", __FILE__,        \
                    __LINE__, #call, result_, strerror(-result_), -(errno_wanted),    \
                    strerror(errno_wanted));                                          \
            _exit(1);                                                                 \
        }                                                                             \
    } while (0)

#endif
