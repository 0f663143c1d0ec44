/*
 * A handle before and after fork, with idle connections of the parent's in it: the child's calls have connections of
 * their own, and the parent's go on.
 *
 * usage: fork URL
 */
#include <leasehold_dss.h>

#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

int main(int argc, char **argv)
{
    struct dss_item item = { "a" };
    struct dss_options options = { 0 };
    struct dss_handle *handle;
    int status;

    CHECK(argc == 2);
    options.url = argv[1];
    EXPECT(0, dss_init(&handle, &options));
    EXPECT(0, dss_lock(handle, DSS_MEDIA, &item, 1));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        EXPECT(EACCES, dss_unlock(handle, DSS_MEDIA, &item, 1, false));
        dss_fini(handle);
        return 0;
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(0, dss_lock_refresh(handle, DSS_MEDIA, &item, 1));
    EXPECT(0, dss_unlock(handle, DSS_MEDIA, &item, 1, false));
    dss_fini(handle);
    puts("all is well");
    return 0;
}
