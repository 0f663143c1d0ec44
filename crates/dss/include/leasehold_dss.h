/*
 * Typed locks of Leasehold: all or nothing, owned by a host and a process.
 *
 * Functions return 0 or a negative errno. Any thread may call them, also after fork(). docs/typed-locks.md is the manual.
 *
 * Generated from crates/dss/src/lib.rs: change it there.
 */

#ifndef LEASEHOLD_DSS_H
#define LEASEHOLD_DSS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/time.h>

/**
 * The type of a lock. The numbers never change and are never used again; 0 is no type.
 */
enum dss_type {
  /**
   * A medium.
   */
  DSS_MEDIA = 1,
  /**
   * A device.
   */
  DSS_DEVICE = 2,
  /**
   * An object.
   */
  DSS_OBJECT = 3,
  /**
   * The layout of an object.
   */
  DSS_LAYOUT = 4,
  /**
   * A deprecated object.
   */
  DSS_DEPREC = 5,
};

/**
 * A handle: where the server is, and this process's connections to it.
 */
struct dss_handle;

/**
 * How a handle reaches its server. Set everything to 0 (`= { 0 }`) and then what matters: a member that is 0 or NULL is
 * taken from the environment, and if there is nothing either, from the default.
 */
struct dss_options {
  /**
   * `https://host:port` or `http://host:port`; several, separated by commas, are tried in turn. Else LEASEHOLD_ADDR, else
   * `http://127.0.0.1:4080`. For `https` LEASEHOLD_CACERT, LEASEHOLD_CLIENT_CERT and LEASEHOLD_CLIENT_KEY name PEM files.
   */
  const char *url;
  /**
   * The access key; else `key_file`, else LEASEHOLD_KEY.
   */
  const char *key;
  /**
   * A file whose first line is the access key; else LEASEHOLD_KEY_FILE.
   */
  const char *key_file;
  /**
   * Milliseconds that a whole call may take; else LEASEHOLD_TIMEOUT (in seconds), else 30000.
   */
  unsigned int timeout_ms;
  /**
   * Milliseconds that one connection may take to be made; else LEASEHOLD_CONNECT_TIMEOUT (in seconds), else 5000.
   */
  unsigned int connect_timeout_ms;
  /**
   * Milliseconds after which locks of this handle are lost unless they are refreshed, as a thread of this library does
   * every third of it while the process lives; else LEASEHOLD_DSS_TTL (in seconds), else locks are never lost.
   */
  unsigned int ttl_ms;
  /**
   * For later; must be NULL.
   */
  void *reserved[4];
};

/**
 * A lock, as `dss_lock_status` tells it. Everything is 0 where there is none.
 */
struct pho_lock {
  /**
   * The host of the owner; freed by `pho_lock_clean`.
   */
  char *hostname;
  /**
   * The pid of the owner on its host; 0 if the lock is held through another of the server's protocols.
   */
  int owner;
  /**
   * When it was taken or last refreshed: grows with every refresh.
   */
  struct timeval timestamp;
  /**
   * The fencing token: grows with every lock that is granted anywhere in the service.
   */
  uint64_t token;
};

/**
 * One of the resources that a call is about.
 */
struct dss_item {
  /**
   * Any text in UTF-8.
   */
  const char *id;
};



#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Makes a handle. It does not connect yet: a server that is down shows in the first call.
 *
 * @param[out]  handle   The handle; release it with `dss_fini`.
 * @param[in]   options  How to reach the server; NULL: everything from the environment or the defaults.
 *
 * @return  0 on success,
 *         -EINVAL if an argument or a variable makes no sense,
 *         -ENOENT, -EACCES, ... if the key file or a PEM file can't be read.
 */
int dss_init(struct dss_handle **handle,
             const struct dss_options *options);

/**
 * Releases a handle, and what is behind it. Locks stay as they are; those with a ttl are no longer refreshed.
 * No other thread may be using the handle.
 *
 * @param[in]  handle  The handle; NULL is allowed.
 */
void dss_fini(struct dss_handle *handle);

/**
 * Takes locks, all of them or none, in one step, for this host and process.
 *
 * @param[in]  handle     The handle.
 * @param[in]  type       The type of the resources.
 * @param[in]  item_list  Array of `struct dss_item`.
 * @param[in]  item_cnt   How many there are; 1 to 20000.
 *
 * @return  0 on success,
 *         -EEXIST if one of the locks exists already, or stands twice in the list,
 *         -EINVAL, -ECONNREFUSED, -ETIMEDOUT, -ECONNRESET, ... see the manual.
 */
int dss_lock(struct dss_handle *handle, enum dss_type type, const void *item_list, int item_cnt);

/**
 * Takes locks as `dss_lock` does, but in the name of another host.
 *
 * Only a call from that host, by a process with the pid of this one, can refresh or unlock them without force.
 *
 * @param[in]  handle     The handle.
 * @param[in]  type       The type of the resources.
 * @param[in]  item_list  Array of `struct dss_item`.
 * @param[in]  item_cnt   How many there are; 1 to 20000.
 * @param[in]  hostname   The host; at most 255 bytes.
 *
 * @return  As `dss_lock`.
 */
int dss_lock_hostname(struct dss_handle *handle,
                      enum dss_type type,
                      const void *item_list,
                      int item_cnt,
                      const char *hostname);

/**
 * Renews the timestamps of locks that this process holds: of as many as possible.
 *
 * @param[in]  handle     The handle.
 * @param[in]  type       The type of the resources.
 * @param[in]  item_list  Array of `struct dss_item`.
 * @param[in]  item_cnt   How many there are.
 *
 * @return  0 if all were refreshed, else the first error in the order of the list:
 *         -ENOLCK if there is no such lock,
 *         -EACCES if another process or host holds it.
 */
int dss_lock_refresh(struct dss_handle *handle, enum dss_type type, const void *item_list, int item_cnt);

/**
 * Releases locks: as many as possible.
 *
 * @param[in]  handle        The handle.
 * @param[in]  type          The type of the resources.
 * @param[in]  item_list     Array of `struct dss_item`.
 * @param[in]  item_cnt      How many there are.
 * @param[in]  force_unlock  Whether it does not matter who holds them.
 *
 * @return  0 if all were unlocked, else the first error in the order of the list:
 *         -ENOLCK if there is no such lock,
 *         -EACCES if another process or host holds it.
 */
int dss_unlock(struct dss_handle *handle,
               enum dss_type type,
               const void *item_list,
               int item_cnt,
               bool force_unlock);

/**
 * Tells who holds locks: of as many as possible.
 *
 * @param[in]   handle     The handle.
 * @param[in]   type       The type of the resources.
 * @param[in]   item_list  Array of `struct dss_item`.
 * @param[in]   item_cnt   How many there are.
 * @param[out]  locks      Array of `item_cnt` structures, all of them written whatever is returned; clean each with
 *                         `pho_lock_clean`. NULL: only the result matters.
 *
 * @return  0 if all are locked, else the first error in the order of the list:
 *         -ENOLCK if there is no such lock,
 *         -ENOMEM if there is no memory for a hostname.
 */
int dss_lock_status(struct dss_handle *handle,
                    enum dss_type type,
                    const void *item_list,
                    int item_cnt,
                    struct pho_lock *locks);

/**
 * Frees what a lock's structure holds, and sets it to 0.
 *
 * @param[in,out]  lock  The structure, as `dss_lock_status` wrote it; NULL is allowed.
 */
void pho_lock_clean(struct pho_lock *lock);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LEASEHOLD_DSS_H */
