//! Typed locks for C programs: `libleasehold_dss`, all or nothing, owned by a host and a process.
//!
//! In:    calls from C, any thread, also after `fork`. Out: 0 or a negative errno; `include/leasehold_dss.h` is generated
//!        from this file, and a test compares them.
//! Never: unwinds into C, prints, aborts, or installs a signal handler.
//!
//! The path of a call: this file checks its arguments, [`client`](Client) sends it until its answer is known (`http.rs`,
//! `tls.rs`, `wire.rs`), `refresh.rs` keeps locks with a ttl alive.

#![allow(unsafe_code, reason = "the interface to C")]
#![allow(non_camel_case_types, reason = "these are C's names")]
#![allow(rustdoc::broken_intra_doc_links, reason = "the header's words are doxygen's: @param[in]")]

mod client;
mod config;
mod errno;
mod http;
mod refresh;
mod response;
mod sys;
mod tls;
mod wire;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::Duration;

pub use client::{Caller, Client};
pub use config::Options;
pub use errno::Errno;
pub use libc::{EACCES, ENOLCK};
pub use sys::hostname;
pub use wire::{Kind, Lock};

/// The type of a lock. The numbers never change and are never used again; 0 is no type.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum dss_type {
    /// A medium.
    DSS_MEDIA = 1,
    /// A device.
    DSS_DEVICE = 2,
    /// An object.
    DSS_OBJECT = 3,
    /// The layout of an object.
    DSS_LAYOUT = 4,
    /// A deprecated object.
    DSS_DEPREC = 5,
}

/// Any number that a caller may pass where the header says `enum dss_type`; looked at before it is believed.
pub type dss_type_number = c_int;

/// A handle: where the server is, and this process's connections to it.
pub struct dss_handle {
    client: Client,
}

/// How a handle reaches its server. Set everything to 0 (`= { 0 }`) and then what matters: a member that is 0 or NULL is
/// taken from the environment, and if there is nothing either, from the default.
#[repr(C)]
#[derive(Debug)]
pub struct dss_options {
    /// `https://host:port` or `http://host:port`; several, separated by commas, are tried in turn. Else LEASEHOLD_ADDR, else
    /// `http://127.0.0.1:4080`. For `https` LEASEHOLD_CACERT, LEASEHOLD_CLIENT_CERT and LEASEHOLD_CLIENT_KEY name PEM files.
    pub url: *const c_char,
    /// The access key; else `key_file`, else LEASEHOLD_KEY.
    pub key: *const c_char,
    /// A file whose first line is the access key; else LEASEHOLD_KEY_FILE.
    pub key_file: *const c_char,
    /// Milliseconds that a whole call may take; else LEASEHOLD_TIMEOUT (in seconds), else 30000.
    pub timeout_ms: c_uint,
    /// Milliseconds that one connection may take to be made; else LEASEHOLD_CONNECT_TIMEOUT (in seconds), else 5000.
    pub connect_timeout_ms: c_uint,
    /// Milliseconds after which locks of this handle are lost unless they are refreshed, as a thread of this library does
    /// every third of it while the process lives; else LEASEHOLD_DSS_TTL (in seconds), else locks are never lost.
    pub ttl_ms: c_uint,
    /// For later; must be NULL.
    pub reserved: [*mut c_void; 4],
}

/// One of the resources that a call is about.
#[repr(C)]
#[derive(Debug)]
pub struct dss_item {
    /// Any text in UTF-8.
    pub id: *const c_char,
}

/// A lock, as `dss_lock_status` tells it. Everything is 0 where there is none.
#[repr(C)]
pub struct pho_lock {
    /// The host of the owner; freed by `pho_lock_clean`.
    pub hostname: *mut c_char,
    /// The pid of the owner on its host; 0 if the lock is held through another of the server's protocols.
    pub owner: c_int,
    /// When it was taken or last refreshed: grows with every refresh.
    pub timestamp: libc::timeval,
    /// The fencing token: grows with every lock that is granted anywhere in the service.
    pub token: u64,
}

/// Makes a handle. It does not connect yet: a server that is down shows in the first call.
///
/// @param[out]  handle   The handle; release it with `dss_fini`.
/// @param[in]   options  How to reach the server; NULL: everything from the environment or the defaults.
///
/// @return  0 on success,
///         -EINVAL if an argument or a variable makes no sense,
///         -ENOENT, -EACCES, ... if the key file or a PEM file can't be read.
///
/// # Safety
/// `handle` points to a pointer that can be written; `options` is NULL or points to options whose texts end in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dss_init(handle: *mut *mut dss_handle, options: *const dss_options) -> c_int {
    guarded(|| {
        if handle.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        silence();
        // SAFETY: it is not NULL, and the caller vouches for the rest.
        unsafe { *handle = std::ptr::null_mut() };
        // SAFETY: the caller vouches for it.
        let options = match unsafe { options.as_ref() } {
            None => Options::default(),
            // SAFETY: as above.
            Some(options) => unsafe { read_options(options)? },
        };
        let client = Client::new(options)?;
        // SAFETY: as above.
        unsafe { *handle = Box::into_raw(Box::new(dss_handle { client })) };
        Ok(())
    })
}

/// Releases a handle, and what is behind it. Locks stay as they are; those with a ttl are no longer refreshed.
/// No other thread may be using the handle.
///
/// @param[in]  handle  The handle; NULL is allowed.
///
/// # Safety
/// `handle` is NULL or comes from `dss_init`, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dss_fini(handle: *mut dss_handle) {
    guarded(|| {
        if !handle.is_null() {
            // SAFETY: the caller vouches that it comes from `dss_init` and was not released before.
            drop(unsafe { Box::from_raw(handle) });
        }
        Ok(())
    });
}

/// Takes locks, all of them or none, in one step, for this host and process.
///
/// @param[in]  handle     The handle.
/// @param[in]  type       The type of the resources.
/// @param[in]  item_list  Array of `struct dss_item`.
/// @param[in]  item_cnt   How many there are; 1 to 20000.
///
/// @return  0 on success,
///         -EEXIST if one of the locks exists already, or stands twice in the list,
///         -EINVAL, -ECONNREFUSED, -ETIMEDOUT, -ECONNRESET, ... see the manual.
///
/// # Safety
/// `handle` comes from `dss_init`; `item_list` has `item_cnt` items whose ids end in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dss_lock(
    handle: *mut dss_handle,
    r#type: dss_type_number,
    item_list: *const c_void,
    item_cnt: c_int,
) -> c_int {
    // SAFETY: the caller vouches for it.
    guarded(|| unsafe { Call::new(handle, r#type, item_list, item_cnt)?.lock(&hostname()?) })
}

/// Takes locks as `dss_lock` does, but in the name of another host.
///
/// Only a call from that host, by a process with the pid of this one, can refresh or unlock them without force.
///
/// @param[in]  handle     The handle.
/// @param[in]  type       The type of the resources.
/// @param[in]  item_list  Array of `struct dss_item`.
/// @param[in]  item_cnt   How many there are; 1 to 20000.
/// @param[in]  hostname   The host; at most 255 bytes.
///
/// @return  As `dss_lock`.
///
/// # Safety
/// As `dss_lock`; `hostname` ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dss_lock_hostname(
    handle: *mut dss_handle,
    r#type: dss_type_number,
    item_list: *const c_void,
    item_cnt: c_int,
    hostname: *const c_char,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller vouches for it.
        let hostname = unsafe { text(hostname)? }.ok_or(Errno(libc::EINVAL))?;
        // SAFETY: as above.
        unsafe { Call::new(handle, r#type, item_list, item_cnt)?.lock(hostname) }
    })
}

/// Renews the timestamps of locks that this process holds: of as many as possible.
///
/// @param[in]  handle     The handle.
/// @param[in]  type       The type of the resources.
/// @param[in]  item_list  Array of `struct dss_item`.
/// @param[in]  item_cnt   How many there are.
///
/// @return  0 if all were refreshed, else the first error in the order of the list:
///         -ENOLCK if there is no such lock,
///         -EACCES if another process or host holds it.
///
/// # Safety
/// As `dss_lock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dss_lock_refresh(
    handle: *mut dss_handle,
    r#type: dss_type_number,
    item_list: *const c_void,
    item_cnt: c_int,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller vouches for it.
        let call = unsafe { Call::new(handle, r#type, item_list, item_cnt)? };
        let hostname = hostname()?;
        call.client.refresh(call.kind, &call.ids, own(&hostname)).1
    })
}

/// Releases locks: as many as possible.
///
/// @param[in]  handle        The handle.
/// @param[in]  type          The type of the resources.
/// @param[in]  item_list     Array of `struct dss_item`.
/// @param[in]  item_cnt      How many there are.
/// @param[in]  force_unlock  Whether it does not matter who holds them.
///
/// @return  0 if all were unlocked, else the first error in the order of the list:
///         -ENOLCK if there is no such lock,
///         -EACCES if another process or host holds it.
///
/// # Safety
/// As `dss_lock`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dss_unlock(
    handle: *mut dss_handle,
    r#type: dss_type_number,
    item_list: *const c_void,
    item_cnt: c_int,
    force_unlock: bool,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller vouches for it.
        let call = unsafe { Call::new(handle, r#type, item_list, item_cnt)? };
        let hostname = hostname()?;
        call.client.unlock(call.kind, &call.ids, own(&hostname), force_unlock).1
    })
}

/// Tells who holds locks: of as many as possible.
///
/// @param[in]   handle     The handle.
/// @param[in]   type       The type of the resources.
/// @param[in]   item_list  Array of `struct dss_item`.
/// @param[in]   item_cnt   How many there are.
/// @param[out]  locks      Array of `item_cnt` structures, all of them written whatever is returned; clean each with
///                         `pho_lock_clean`. NULL: only the result matters.
///
/// @return  0 if all are locked, else the first error in the order of the list:
///         -ENOLCK if there is no such lock,
///         -ENOMEM if there is no memory for a hostname.
///
/// # Safety
/// As `dss_lock`; `locks` is NULL or has room for `item_cnt` structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dss_lock_status(
    handle: *mut dss_handle,
    r#type: dss_type_number,
    item_list: *const c_void,
    item_cnt: c_int,
    locks: *mut pho_lock,
) -> c_int {
    guarded(|| {
        let count = usize::try_from(item_cnt).unwrap_or(0);
        if !locks.is_null() {
            // SAFETY: the caller vouches for the room; 0 is a value for every member.
            unsafe { std::ptr::write_bytes(locks, 0, count) };
        }
        // SAFETY: the caller vouches for it.
        let call = unsafe { Call::new(handle, r#type, item_list, item_cnt)? };
        let (found, mut result) = call.client.status(call.kind, &call.ids);
        if !locks.is_null() {
            // SAFETY: as above; just now written.
            let locks = unsafe { std::slice::from_raw_parts_mut(locks, count) };
            for (lock, found) in locks.iter_mut().zip(&found).filter(|(_, found)| found.errno.is_none()) {
                result = result.and(fill(lock, found));
            }
        }
        result
    })
}

/// Frees what a lock's structure holds, and sets it to 0.
///
/// @param[in,out]  lock  The structure, as `dss_lock_status` wrote it; NULL is allowed.
///
/// # Safety
/// `lock` is NULL or was written by `dss_lock_status` or by this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pho_lock_clean(lock: *mut pho_lock) {
    // SAFETY: the caller vouches for it: the hostname is NULL or was allocated by `fill`.
    unsafe {
        if let Some(lock) = lock.as_mut() {
            libc::free(lock.hostname.cast());
            std::ptr::write_bytes(lock, 0, 1);
        }
    }
}

/// The arguments that all calls have, checked.
struct Call<'a> {
    client: &'a Client,
    kind: Kind,
    ids: Vec<&'a str>,
}

impl<'a> Call<'a> {
    /// # Safety
    /// As `dss_lock`; what is passed outlives the call.
    unsafe fn new(
        handle: *mut dss_handle,
        kind: dss_type_number,
        item_list: *const c_void,
        item_cnt: c_int,
    ) -> Result<Self, Errno> {
        let bad = Errno(libc::EINVAL);
        // SAFETY: the caller vouches that it is NULL or a handle.
        let handle: &'a dss_handle = unsafe { handle.as_ref() }.ok_or(bad)?;
        let count = usize::try_from(item_cnt).ok().filter(|count| *count > 0).ok_or(bad)?;
        let kind = Kind::from_number(kind)?;
        if item_list.is_null() {
            return Err(bad);
        }
        // SAFETY: the caller vouches for so many items.
        let items: &'a [dss_item] = unsafe { std::slice::from_raw_parts(item_list.cast(), count) };
        let mut ids = Vec::new();
        ids.try_reserve_exact(count).map_err(|_| Errno(libc::ENOMEM))?;
        for item in items {
            // SAFETY: the caller vouches that ids end in NUL.
            ids.push(unsafe { text(item.id)? }.ok_or(bad)?);
        }
        Ok(Self { client: &handle.client, kind, ids })
    }

    fn lock(&self, hostname: &str) -> Result<(), Errno> {
        self.client.lock(self.kind, &self.ids, own(hostname)).map(drop)
    }
}

/// This process, on this host.
fn own(hostname: &str) -> Caller<'_> {
    Caller { hostname, pid: client::own_pid() }
}

/// A text from C; `None` for NULL.
///
/// # Safety
/// `pointer` is NULL, or the text ends in NUL and lives for `'a`.
unsafe fn text<'a>(pointer: *const c_char) -> Result<Option<&'a str>, Errno> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller vouches for it.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| Errno(libc::EINVAL))
}

/// # Safety
/// Every text is NULL or ends in NUL.
unsafe fn read_options(options: &dss_options) -> Result<Options, Errno> {
    if options.reserved.iter().any(|reserved| !reserved.is_null()) {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the caller vouches for it.
    let owned = |pointer| unsafe { text(pointer) }.map(|text| text.map(str::to_string));
    let time = |millis: c_uint| (millis > 0).then(|| Duration::from_millis(millis.into()));
    Ok(Options {
        url: owned(options.url)?,
        key: owned(options.key)?,
        key_file: owned(options.key_file)?,
        timeout: time(options.timeout_ms),
        connect_timeout: time(options.connect_timeout_ms),
        ttl: time(options.ttl_ms),
        ..Options::default()
    })
}

/// Writes a lock for C. The structure is all 0 before, and again if there is no memory.
fn fill(lock: &mut pho_lock, found: &Lock) -> Result<(), Errno> {
    let hostname = found.hostname.as_deref().unwrap_or("").as_bytes();
    // What C can't hold ends where C would end it.
    let len = hostname.iter().position(|byte| *byte == 0).unwrap_or(hostname.len());
    // SAFETY: what is allocated has room for the text and its NUL.
    lock.hostname = unsafe {
        let copy = libc::malloc(len + 1).cast::<u8>();
        if copy.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        std::ptr::copy_nonoverlapping(hostname.as_ptr(), copy, len);
        *copy.add(len) = 0;
        copy.cast()
    };
    lock.owner = found.owner.unwrap_or(0);
    let (seconds, micros) = found.timestamp.as_deref().and_then(wire::timeval).unwrap_or((0, 0));
    lock.timestamp = libc::timeval { tv_sec: seconds as _, tv_usec: micros as _ };
    lock.token = found.token.unwrap_or(0);
    Ok(())
}

/// Nothing unwinds into C.
fn guarded(call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => 0,
        Ok(Err(errno)) => errno.to_c(),
        Err(_) => -libc::EIO,
    }
}

/// A library prints nothing, not even about its own mistakes. (Its standard library is its own: no other code is silenced.)
fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}
