/*
 * Every call of the library, its successes and its errors, against a real server.
 *
 * usage: suite URL [no-threads]
 */
#include <leasehold_dss.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const char *url;
static char host[256];

static struct dss_handle *open_handle(unsigned int ttl_ms)
{
    struct dss_options options = { 0 };
    struct dss_handle *handle = NULL;

    options.url = url;
    options.ttl_ms = ttl_ms;
    EXPECT(0, dss_init(&handle, &options));
    CHECK(handle != NULL);
    return handle;
}

static bool newer(struct timeval a, struct timeval b)
{
    return a.tv_sec > b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_usec > b.tv_usec);
}

static void test_init(void)
{
    struct dss_options options = { 0 };
    struct dss_handle *handle = (void *)1;
    const char *bad[] = { "", "ftp://x", "http://", "http://x:0", "x y" };

    EXPECT(EINVAL, dss_init(NULL, NULL));
    for (int i = 0; i < COUNT(bad); i++) {
        options.url = bad[i];
        EXPECT(EINVAL, dss_init(&handle, &options));
        CHECK(handle == NULL);
    }
    const char *given = getenv("LEASEHOLD_CACERT");
    char *cacert = given != NULL ? strdup(given) : NULL;
    options.url = "https://x";
    setenv("LEASEHOLD_CACERT", "/nonexistent", 1);
    EXPECT(ENOENT, dss_init(&handle, &options));
    unsetenv("LEASEHOLD_CACERT");
    if (cacert != NULL)
        setenv("LEASEHOLD_CACERT", cacert, 1);
    free(cacert);
    options.url = url;
    options.key_file = "/nonexistent";
    EXPECT(ENOENT, dss_init(&handle, &options));
    options.key_file = NULL;
    options.key = "not a\nkey";
    EXPECT(EINVAL, dss_init(&handle, &options));
    options.key = "a-key";
    options.reserved[3] = &options;
    EXPECT(EINVAL, dss_init(&handle, &options));
    options.reserved[3] = NULL;
    EXPECT(0, dss_init(&handle, &options));
    dss_fini(handle);
    dss_fini(NULL);
    setenv("LEASEHOLD_ADDR", url, 1);
    EXPECT(0, dss_init(&handle, NULL));
    struct dss_item item = { "from the environment" };
    EXPECT(0, dss_lock(handle, DSS_OBJECT, &item, 1));
    EXPECT(0, dss_unlock(handle, DSS_OBJECT, &item, 1, false));
    dss_fini(handle);
}

static void test_arguments(struct dss_handle *handle)
{
    struct dss_item item = { "a" }, none = { NULL }, latin = { "caf\xe9" };
    struct pho_lock lock;

    EXPECT(EINVAL, dss_lock(NULL, DSS_MEDIA, &item, 1));
    EXPECT(EINVAL, dss_lock(handle, (enum dss_type)0, &item, 1));
    EXPECT(EINVAL, dss_lock(handle, (enum dss_type)6, &item, 1));
    EXPECT(EINVAL, dss_lock(handle, (enum dss_type)-1, &item, 1));
    EXPECT(EINVAL, dss_lock(handle, DSS_MEDIA, NULL, 1));
    EXPECT(EINVAL, dss_lock(handle, DSS_MEDIA, &item, 0));
    EXPECT(EINVAL, dss_lock(handle, DSS_MEDIA, &item, -1));
    EXPECT(EINVAL, dss_lock(handle, DSS_MEDIA, &none, 1));
    EXPECT(EINVAL, dss_lock(handle, DSS_MEDIA, &latin, 1));
    EXPECT(EINVAL, dss_lock_hostname(handle, DSS_MEDIA, &item, 1, NULL));
    EXPECT(EINVAL, dss_lock_hostname(handle, DSS_MEDIA, &item, 1, ""));
    char long_name[300];
    memset(long_name, 'h', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = 0;
    EXPECT(EINVAL, dss_lock_hostname(handle, DSS_MEDIA, &item, 1, long_name));
    /* What stands before an id in the server's table does not count. */
    char long_id[2050];
    struct dss_item longest = { long_id };
    memset(long_id, 'x', sizeof(long_id));
    long_id[2048] = 0;
    EXPECT(0, dss_lock(handle, DSS_DEPREC, &longest, 1));
    EXPECT(0, dss_lock_status(handle, DSS_DEPREC, &longest, 1, NULL));
    EXPECT(0, dss_unlock(handle, DSS_DEPREC, &longest, 1, false));
    long_id[2048] = 'x';
    long_id[2049] = 0;
    EXPECT(EINVAL, dss_lock(handle, DSS_DEPREC, &longest, 1));
    EXPECT(EINVAL, dss_lock_refresh(handle, DSS_MEDIA, NULL, 1));
    EXPECT(EINVAL, dss_unlock(NULL, DSS_MEDIA, &item, 1, true));
    EXPECT(EINVAL, dss_lock_status(handle, DSS_MEDIA, &item, 0, NULL));
    memset(&lock, 0xff, sizeof(lock));
    EXPECT(EINVAL, dss_lock_status(handle, DSS_MEDIA, &none, 1, &lock));
    CHECK(lock.hostname == NULL && lock.owner == 0 && lock.timestamp.tv_sec == 0);
    pho_lock_clean(&lock);
    EXPECT(ENOLCK, dss_lock_status(handle, DSS_MEDIA, &item, 1, NULL));
}

static void test_lock(struct dss_handle *handle)
{
    struct dss_item abc[] = { { "a" }, { "b/c" }, { "\xc3\xa4 \"q\" \\" } };
    struct dss_item bd[] = { { "d" }, { "b/c" } }, twice[] = { { "e" }, { "e" } };

    EXPECT(0, dss_lock(handle, DSS_MEDIA, abc, 3));
    EXPECT(EEXIST, dss_lock(handle, DSS_MEDIA, abc, 3));
    EXPECT(EEXIST, dss_lock(handle, DSS_MEDIA, bd, 2));
    EXPECT(ENOLCK, dss_lock_status(handle, DSS_MEDIA, bd, 1, NULL));
    EXPECT(EEXIST, dss_lock(handle, DSS_MEDIA, twice, 2));
    EXPECT(ENOLCK, dss_lock_status(handle, DSS_MEDIA, twice, 1, NULL));
    EXPECT(0, dss_lock(handle, DSS_DEVICE, abc, 3));
    EXPECT(0, dss_unlock(handle, DSS_DEVICE, abc, 3, false));
    EXPECT(0, dss_unlock(handle, DSS_MEDIA, abc, 3, false));
    for (int type = DSS_MEDIA; type <= DSS_DEPREC; type++) {
        EXPECT(0, dss_lock(handle, (enum dss_type)type, abc, 3));
        EXPECT(0, dss_unlock(handle, (enum dss_type)type, abc, 3, false));
    }
}

static void test_hostname(struct dss_handle *handle)
{
    struct dss_item item = { "elsewhere" };
    struct pho_lock lock;

    EXPECT(0, dss_lock_hostname(handle, DSS_DEVICE, &item, 1, "other:host"));
    EXPECT(EEXIST, dss_lock(handle, DSS_DEVICE, &item, 1));
    EXPECT(0, dss_lock_status(handle, DSS_DEVICE, &item, 1, &lock));
    CHECK(strcmp(lock.hostname, "other:host") == 0 && lock.owner == getpid());
    pho_lock_clean(&lock);
    EXPECT(EACCES, dss_lock_refresh(handle, DSS_DEVICE, &item, 1));
    EXPECT(EACCES, dss_unlock(handle, DSS_DEVICE, &item, 1, false));
    EXPECT(0, dss_unlock(handle, DSS_DEVICE, &item, 1, true));
    EXPECT(ENOLCK, dss_unlock(handle, DSS_DEVICE, &item, 1, true));
}

static void test_refresh(struct dss_handle *handle)
{
    struct dss_item items[] = { { "r1" }, { "missing" }, { "r2" }, { "foreign" } };
    struct pho_lock before[4], after[4];

    EXPECT(0, dss_lock(handle, DSS_LAYOUT, &items[0], 1));
    EXPECT(0, dss_lock(handle, DSS_LAYOUT, &items[2], 1));
    EXPECT(0, dss_lock_hostname(handle, DSS_LAYOUT, &items[3], 1, "x"));
    EXPECT(ENOLCK, dss_lock_status(handle, DSS_LAYOUT, items, 4, before));
    EXPECT(ENOLCK, dss_lock_refresh(handle, DSS_LAYOUT, items, 4));
    EXPECT(EACCES, dss_lock_refresh(handle, DSS_LAYOUT, items + 2, 2));
    EXPECT(ENOLCK, dss_lock_status(handle, DSS_LAYOUT, items, 4, after));
    CHECK(newer(after[0].timestamp, before[0].timestamp));
    CHECK(newer(after[2].timestamp, before[2].timestamp));
    CHECK(!newer(after[3].timestamp, before[3].timestamp));
    CHECK(after[0].token == before[0].token);
    CHECK(after[1].hostname == NULL && after[1].owner == 0 && after[1].token == 0);
    for (int i = 0; i < 4; i++) {
        pho_lock_clean(&before[i]);
        pho_lock_clean(&after[i]);
        CHECK(after[i].hostname == NULL);
        pho_lock_clean(&after[i]);
    }
    EXPECT(ENOLCK, dss_unlock(handle, DSS_LAYOUT, items, 4, true));
    EXPECT(ENOLCK, dss_lock_status(handle, DSS_LAYOUT, &items[3], 1, NULL));
}

static void test_unlock(struct dss_handle *handle)
{
    struct dss_item items[] = { { "mine" }, { "foreign" }, { "missing" }, { "mine" } };

    EXPECT(0, dss_lock(handle, DSS_DEPREC, &items[0], 1));
    EXPECT(0, dss_lock_hostname(handle, DSS_DEPREC, &items[1], 1, "x"));
    EXPECT(EACCES, dss_unlock(handle, DSS_DEPREC, items, 4, false));
    EXPECT(ENOLCK, dss_lock_status(handle, DSS_DEPREC, &items[0], 1, NULL));
    EXPECT(0, dss_lock_status(handle, DSS_DEPREC, &items[1], 1, NULL));
    EXPECT(0, dss_unlock(handle, DSS_DEPREC, &items[1], 1, true));
}

static void test_status(struct dss_handle *handle)
{
    struct dss_item items[] = { { "s1" }, { "none" }, { "s2" } };
    struct pho_lock locks[3];
    struct timeval now;

    EXPECT(0, dss_lock(handle, DSS_OBJECT, &items[0], 1));
    EXPECT(0, dss_lock(handle, DSS_OBJECT, &items[2], 1));
    memset(locks, 0xff, sizeof(locks));
    EXPECT(ENOLCK, dss_lock_status(handle, DSS_OBJECT, items, 3, locks));
    gettimeofday(&now, NULL);
    for (int i = 0; i < 3; i += 2) {
        CHECK(strcmp(locks[i].hostname, host) == 0);
        CHECK(locks[i].owner == getpid());
        CHECK(labs((long)(now.tv_sec - locks[i].timestamp.tv_sec)) < 120);
        CHECK(locks[i].timestamp.tv_usec >= 0 && locks[i].timestamp.tv_usec < 1000000);
    }
    CHECK(locks[1].hostname == NULL && locks[1].owner == 0);
    CHECK(locks[2].token > locks[0].token);
    for (int i = 0; i < 3; i++)
        pho_lock_clean(&locks[i]);
    pho_lock_clean(NULL);
    EXPECT(ENOLCK, dss_lock_status(handle, DSS_OBJECT, items, 3, NULL));
    EXPECT(0, dss_lock_status(handle, DSS_OBJECT, &items[2], 1, NULL));
    EXPECT(ENOLCK, dss_unlock(handle, DSS_OBJECT, items, 3, false));
}

/* More than one request can carry, where that is possible. */
static void test_many(struct dss_handle *handle)
{
    enum { MANY = 10000, MORE = 20001 };
    static struct dss_item items[MORE];
    static char names[MORE][16];
    struct pho_lock *locks = calloc(MORE, sizeof(*locks));

    for (int i = 0; i < MORE; i++) {
        snprintf(names[i], sizeof(names[i]), "many-%d", i);
        items[i].id = names[i];
    }
    EXPECT(0, dss_lock(handle, DSS_MEDIA, items, MANY));
    EXPECT(0, dss_lock(handle, DSS_MEDIA, items + MANY, MANY));
    EXPECT(EINVAL, dss_lock(handle, DSS_OBJECT, items, MORE));
    EXPECT(ENOLCK, dss_lock_status(handle, DSS_MEDIA, items, MORE, locks));
    for (int i = 0; i < MORE; i++) {
        CHECK((locks[i].hostname != NULL) == (i < 2 * MANY));
        pho_lock_clean(&locks[i]);
    }
    free(locks);
    EXPECT(0, dss_lock_refresh(handle, DSS_MEDIA, items, 2 * MANY));
    EXPECT(ENOLCK, dss_unlock(handle, DSS_MEDIA, items, MORE, false));
    EXPECT(ENOLCK, dss_lock_status(handle, DSS_MEDIA, items, MORE, NULL));
}

static void expect_exit(pid_t child)
{
    int status = 0;

    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "a child ended with status %x\n", status);
        _exit(1);
    }
}

/*
 * Ends a child that was forked while other threads ran. What they had allocated is lost in the child of any program, and
 * is no leak of the library's.
 */
static void leave_uncounted(void)
{
    execlp("true", "true", (char *)NULL);
    _exit(1);
}

/* The child is another owner, on connections of its own. */
static void test_fork(struct dss_handle *handle)
{
    struct dss_item parents = { "of the parent" }, childs = { "of the child" };
    struct pho_lock lock;

    EXPECT(0, dss_lock(handle, DSS_MEDIA, &parents, 1));
    pid_t child = fork();
    if (child == 0) {
        EXPECT(EACCES, dss_unlock(handle, DSS_MEDIA, &parents, 1, false));
        EXPECT(0, dss_lock(handle, DSS_MEDIA, &childs, 1));
        EXPECT(0, dss_lock_status(handle, DSS_MEDIA, &childs, 1, &lock));
        CHECK(lock.owner == getpid());
        pho_lock_clean(&lock);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            EXPECT(EACCES, dss_unlock(handle, DSS_MEDIA, &childs, 1, false));
            dss_fini(handle);
            exit(0);
        }
        expect_exit(grandchild);
        dss_fini(handle);
        exit(0);
    }
    EXPECT(0, dss_lock_refresh(handle, DSS_MEDIA, &parents, 1));
    expect_exit(child);
    EXPECT(0, dss_lock_status(handle, DSS_MEDIA, &childs, 1, &lock));
    CHECK(lock.owner == child);
    pho_lock_clean(&lock);
    EXPECT(EACCES, dss_unlock(handle, DSS_MEDIA, &childs, 1, false));
    EXPECT(0, dss_unlock(handle, DSS_MEDIA, &childs, 1, true));
    EXPECT(0, dss_unlock(handle, DSS_MEDIA, &parents, 1, false));
}

struct worker {
    struct dss_handle *handle;
    atomic_bool *stop;
    int number;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    char names[2][32];
    struct dss_item items[] = { { names[0] }, { names[1] } };

    for (int i = 0; i < 2; i++)
        snprintf(names[i], sizeof(names[i]), "thread-%d-%d", worker->number, i);
    do {
        EXPECT(0, dss_lock(worker->handle, DSS_OBJECT, items, 2));
        EXPECT(0, dss_lock_refresh(worker->handle, DSS_OBJECT, items, 2));
        EXPECT(0, dss_unlock(worker->handle, DSS_OBJECT, items, 2, false));
    } while (!atomic_load(worker->stop));
    return NULL;
}

/* Threads share a handle; children are forked meanwhile, at any moment, and can use it too. */
static void test_threads(struct dss_handle *handle, int children)
{
    enum { THREADS = 6 };
    pthread_t threads[THREADS];
    struct worker workers[THREADS];
    atomic_bool stop = false;

    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){ handle, &stop, i };
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < children; i++) {
        pid_t child = fork();
        if (child == 0) {
            struct dss_item item = { "of a child among threads" };
            alarm(60); /* a child that waits for a thread it does not have would wait for ever */
            EXPECT(0, dss_lock(handle, DSS_MEDIA, &item, 1));
            EXPECT(0, dss_unlock(handle, DSS_MEDIA, &item, 1, false));
            leave_uncounted();
        }
        expect_exit(child);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

static int held(struct dss_handle *handle, const char *id)
{
    struct dss_item item = { id };

    return dss_lock_status(handle, DSS_DEVICE, &item, 1, NULL);
}

static void wait_until_gone(struct dss_handle *handle, const char *id)
{
    for (int i = 0; i < 1200 && held(handle, id) == 0; i++)
        usleep(50 * 1000);
    EXPECT(ENOLCK, held(handle, id));
}

/* A lock with a ttl stays while its process and its handle do, and goes with them. */
static void test_ttl(struct dss_handle *plain)
{
    struct dss_handle *handle = open_handle(1500);
    struct dss_item kept = { "kept" }, given_back = { "given back" }, childs = { "of a child with a ttl" };

    EXPECT(0, dss_lock(handle, DSS_DEVICE, &kept, 1));
    EXPECT(0, dss_lock(handle, DSS_DEVICE, &given_back, 1));
    EXPECT(0, dss_unlock(handle, DSS_DEVICE, &given_back, 1, false));
    EXPECT(0, dss_lock(plain, DSS_DEVICE, &given_back, 1));
    pid_t child = fork();
    if (child == 0) {
        EXPECT(0, dss_lock(handle, DSS_DEVICE, &childs, 1));
        usleep(3000 * 1000);
        EXPECT(0, held(handle, "of a child with a ttl"));
        dss_fini(handle);
        leave_uncounted();
    }
    usleep(2500 * 1000);
    EXPECT(0, held(plain, "kept"));
    expect_exit(child);
    wait_until_gone(plain, "of a child with a ttl");
    EXPECT(0, held(plain, "kept"));
    dss_fini(handle);
    wait_until_gone(plain, "kept");
    EXPECT(0, dss_unlock(plain, DSS_DEVICE, &given_back, 1, false));
}

/* What every signal did before the library was used: whoever started this may have had some ignored. */
static struct sigaction before[32];

static void note_signals(void)
{
    for (int signal = 1; signal < 32; signal++)
        CHECK(sigaction(signal, NULL, &before[signal]) == 0);
}

static void expect_same_signals(void)
{
    for (int signal = 1; signal < 32; signal++) {
        struct sigaction after;

        CHECK(sigaction(signal, NULL, &after) == 0);
        if (after.sa_handler != before[signal].sa_handler) {
            fprintf(stderr, "the handler of signal %d has changed\n", signal);
            _exit(1);
        }
    }
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    note_signals();
    url = argv[1];
    gethostname(host, sizeof(host) - 1);
    test_init();
    struct dss_handle *handle = open_handle(0);
    test_arguments(handle);
    test_lock(handle);
    test_hostname(handle);
    test_refresh(handle);
    test_unlock(handle);
    test_status(handle);
    test_many(handle);
    test_fork(handle);
    test_threads(handle, argc > 2 ? atoi(argv[2]) : 30);
    test_ttl(handle);
    dss_fini(handle);
    expect_same_signals();
    puts("all is well");
    return 0;
}
