//! Every limit of the table, with the reason for its number.
//!
//! In:    nothing. Out: constants for the dialects (which refuse early, with a message) and the table.
//! Never: depends on a machine; two nodes with different limits would disagree about one log.

/// Longest resource name, in bytes. A lease URI may be 2048 bytes long and is a resource name then;
/// longer names would make every list and event larger for everybody.
pub const RESOURCE_LEN_MAX: usize = 2048;

/// Longest owner, in bytes: room for a distinguished name of a client certificate.
pub const OWNER_LEN_MAX: usize = 1024;

/// Largest user data of one claim, in bytes. Data travels in every log entry, snapshot and list page:
/// a claim says who and why; what it guards lives elsewhere.
pub const DATA_LEN_MAX: usize = 64 * 1024;

/// Longest ttl or wait: one hundred years, in microseconds. Sums of a stamp and a ttl stay far below 2^63.
pub const TTL_US_MAX: u64 = 100 * 366 * 86_400 * 1_000_000;

/// Longest time for which a promoted claim stays active beyond its ttl because its client looks only now and then. A
/// client that died while it waited keeps others waiting for as long.
pub const PICKUP_US_MAX: u64 = 600 * 1_000_000;

/// How many claims one entry expires at the most, so that a million due at once stall nobody: at about five
/// microseconds each, cold and with one of the oldest forgotten, an entry that expires this many takes half a
/// millisecond, and a request waits for two entries at the most. At 200 eight of 3,000 requests waited longer than ten
/// milliseconds while a million claims expired. With many fewer, most of the time would go into syncing entries.
pub const EXPIRIES_PER_ENTRY: usize = 100;

/// How many waits that are over one entry ends beyond that, because a hand-over or a look at a queue meets them: a queue
/// may be as long as the table allows, and all of it may be over at once. The rest is passed over, never granted
/// anything, and ended by the next entries.
pub const OVERDUE_WAITS_PER_ENTRY: usize = 100;

/// How many items of claims one `Revoke` command ends at the most, and of its last claim all; its caller asks again until
/// none is left.
pub const REVOCATIONS_PER_COMMAND: usize = 500;

/// Most resources in one all-or-nothing command: the typed locks promise 10,000 in a call.
pub const LOCK_ALL_LEN_MAX: usize = 20_000;

/// Most items in one claim: each costs a place in a queue, and an event with every renewal.
pub const ITEMS_MAX: usize = 1000;

/// Most slots of one resource. A holder's slots are named one by one in every answer.
pub const SLOTS_MAX: u16 = 10_000;

/// Most claims that hold or reserve one resource at a time.
pub const HOLDERS_MAX: u64 = 100_000;

/// Longest path of a session, in bytes: a worker's name and a few levels of nested commands.
pub const SESSION_LEN_MAX: usize = 512;

/// How many items a look for a deadlock visits at the most: about a millisecond. Beyond it the claim waits unchecked.
pub const DEADLOCK_ITEMS_MAX: usize = 10_000;

/// How many items of waiting claims one entry admits at the most, beyond one for each item that ended in it: a writer that ends in front
/// of a hundred thousand readers stalls nobody. The rest follows in the next entries, in order.
pub const ADMISSIONS_PER_ENTRY: usize = 1000;

/// How many holders of a resource a command looks through for some that are over, while a backlog of due claims is worked
/// off. With more of them the resource counts as unsettled until the backlog is gone.
pub const SETTLED_HOLDERS_MAX: usize = 1000;

/// Default for [`crate::Settings::finished_max`]: newest finished claims that stay readable.
pub const FINISHED_MAX_DEFAULT: u64 = 100_000;

/// Default for [`crate::Settings::queue_len_max`]: waiting claims on one resource. A queue member costs
/// about 200 bytes, and a withdrawal moves at most this many eight-byte numbers.
pub const QUEUE_LEN_MAX_DEFAULT: u64 = 100_000;

/// Default for [`crate::Settings::claims_per_owner_max`] and
/// [`crate::Settings::claims_per_namespace_max`]: as many as the whole table.
pub const CLAIMS_PER_GROUP_MAX_DEFAULT: u64 = CLAIMS_MAX_DEFAULT;

/// Default for [`crate::Settings::claims_max`]: held and waiting claims in the table, about 2.5 GB of memory.
pub const CLAIMS_MAX_DEFAULT: u64 = 10_000_000;

/// Bytes of each claim that no budget counts: names and data of most. What those take is bounded by their number
/// ([`CLAIMS_MAX_DEFAULT`], [`FINISHED_MAX_DEFAULT`]), and a million of them of one owner stay possible.
pub const BYTES_FREE: usize = 256;

/// What an idempotency key counts for: itself, its place in the index, and the allocations that hold it.
pub const KEY_BYTES: usize = 180;

/// Default for [`crate::Budgets::total`]. With the claims themselves, a copy while a snapshot is taken over, and the log's cache it
/// fits a machine of 2 GiB. Part of table version 2: another default needs another version.
pub const BYTES_MAX_DEFAULT: u64 = 512 << 20;

/// Default for [`crate::Budgets::per_namespace`]: no namespace alone fills the table.
pub const BYTES_PER_NAMESPACE_MAX_DEFAULT: u64 = 256 << 20;

/// Default for [`crate::Budgets::per_owner`]: a thousand claims with the largest data there is.
pub const BYTES_PER_OWNER_MAX_DEFAULT: u64 = 64 << 20;

/// Default for [`crate::Budgets::finished`].
pub const FINISHED_BYTES_MAX_DEFAULT: u64 = 64 << 20;

/// Overrides of budgets by prefix: each stands in every snapshot, and is looked for with each large claim.
pub const BUDGET_OVERRIDES_MAX: usize = 1000;
