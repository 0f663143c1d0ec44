/*
 * No memory for a hostname: the status says so, and every structure can be cleaned all the same.
 *
 * usage: nomem URL
 */
#include <leasehold_dss.h>

#include <unistd.h>

#include "check.h"

/* Nothing else allocates exactly so much: the hostname and its NUL. */
enum { LEN = 200 };

extern void *__libc_malloc(size_t size);
static bool refuse;

void *malloc(size_t size)
{
    return refuse && size == LEN ? NULL : __libc_malloc(size);
}

int main(int argc, char **argv)
{
    struct dss_item items[] = { { "a" }, { "b" }, { "c" } };
    struct dss_options options = { 0 };
    struct dss_handle *handle;
    struct pho_lock locks[3];
    char hostname[LEN];

    CHECK(argc == 2);
    memset(hostname, 'h', LEN - 1);
    hostname[LEN - 1] = 0;
    options.url = argv[1];
    EXPECT(0, dss_init(&handle, &options));
    EXPECT(0, dss_lock(handle, DSS_MEDIA, &items[0], 1));
    EXPECT(0, dss_lock_hostname(handle, DSS_MEDIA, &items[1], 1, hostname));
    EXPECT(0, dss_lock(handle, DSS_MEDIA, &items[2], 1));
    memset(locks, 0xff, sizeof(locks));
    refuse = true;
    EXPECT(ENOMEM, dss_lock_status(handle, DSS_MEDIA, items, 3, locks));
    refuse = false;
    CHECK(locks[1].hostname == NULL && locks[1].owner == 0);
    CHECK(locks[0].owner == getpid() && locks[2].owner == getpid());
    for (int i = 0; i < 3; i++)
        pho_lock_clean(&locks[i]);
    EXPECT(0, dss_lock_status(handle, DSS_MEDIA, items, 3, locks));
    CHECK(strcmp(locks[1].hostname, hostname) == 0);
    for (int i = 0; i < 3; i++)
        pho_lock_clean(&locks[i]);
    EXPECT(0, dss_unlock(handle, DSS_MEDIA, items, 3, true));
    dss_fini(handle);
    puts("all is well");
    return 0;
}
