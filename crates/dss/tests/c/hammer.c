/*
 * One process, some threads, overlapping sets of ids: whoever is told that a set is his must be alone with it.
 * Processes that share FILE watch each other: it holds a number for each id, that of its holder.
 *
 * usage: hammer URL FILE PROCESS THREADS SECONDS
 */
#include <leasehold_dss.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { IDS = 12, SET = 4 };

static struct dss_handle *handle;
static atomic_int *holders;
static time_t end;
static int process;
static atomic_long taken, refused, unreached;

/* Nothing was sent: the server is down just now. Anything else must be known. */
static bool is_down(int result)
{
    if (result == -ECONNREFUSED) {
        atomic_fetch_add(&unreached, 1);
        usleep(20 * 1000);
        return true;
    }
    return false;
}

static void *hammer(void *argument)
{
    int number = *(int *)argument, me = process * 100 + number + 1;
    unsigned int seed = (unsigned int)me;
    char names[IDS][8];
    struct dss_item items[2 * IDS];

    for (int i = 0; i < IDS; i++) {
        snprintf(names[i], sizeof(names[i]), "id-%d", i);
        items[i].id = items[IDS + i].id = names[i];
    }
    while (time(NULL) < end) {
        int start = (int)(rand_r(&seed) % IDS), result = dss_lock(handle, DSS_MEDIA, items + start, SET);

        if (is_down(result))
            continue;
        if (result == -EEXIST) {
            atomic_fetch_add(&refused, 1);
            continue;
        }
        EXPECT(0, result);
        atomic_fetch_add(&taken, 1);
        for (int i = 0; i < SET; i++) {
            int nobody = 0;

            if (!atomic_compare_exchange_strong(&holders[(start + i) % IDS], &nobody, me)) {
                fprintf(stderr, "%s is mine (%d) and also %d's\n", items[start + i].id, me, nobody);
                _exit(1);
            }
        }
        if (number == 0) {
            struct pho_lock locks[SET];

            while (is_down(result = dss_lock_status(handle, DSS_MEDIA, items + start, SET, locks)) ||
                   result == -ECONNRESET)
                ;
            EXPECT(0, result);
            for (int i = 0; i < SET; i++) {
                CHECK(locks[i].owner == getpid());
                pho_lock_clean(&locks[i]);
            }
        }
        for (int i = 0; i < SET; i++)
            atomic_store(&holders[(start + i) % IDS], 0);
        while (is_down(result = dss_unlock(handle, DSS_MEDIA, items + start, SET, false)))
            ;
        EXPECT(0, result);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc == 6);
    struct dss_options options = { 0 };
    int count = atoi(argv[4]), file = open(argv[2], O_RDWR);
    pthread_t threads[64];
    int numbers[64];

    signal(SIGPIPE, SIG_DFL);
    CHECK(count <= 64);
    options.url = argv[1];
    options.timeout_ms = 120000;
    EXPECT(0, dss_init(&handle, &options));
    process = atoi(argv[3]);
    holders = mmap(NULL, IDS * sizeof(*holders), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(holders != MAP_FAILED);
    end = time(NULL) + atoi(argv[5]);
    for (int i = 0; i < count; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, hammer, &numbers[i]) == 0);
    }
    for (int i = 0; i < count; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    dss_fini(handle);
    munmap(holders, IDS * sizeof(*holders));
    close(file);
    printf("taken %ld refused %ld unreached %ld\n", taken, refused, unreached);
    return 0;
}
