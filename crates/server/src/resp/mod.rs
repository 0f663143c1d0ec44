//! RESP, the protocol of Redis: bytes to commands, replies to bytes.
//!
//! In:    bytes of a client. Out: commands as lists of arguments ([`parse`]); bytes of replies ([`reply`]).
//! Never: knows a command, a lock or a user.
//!
//! It is our own because requests use a small part of RESP (arrays of strings, and lines), and because limits on what a
//! stranger may send belong into the parser. Crates for RESP parse every frame of both versions and know no lines.

pub mod parse;
pub mod reply;

pub use self::parse::{Limits, Parser, ProtocolError};
pub use self::reply::{Protocol, Reply};
