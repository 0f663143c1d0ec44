//! HTTP as a transport: HTTP/1.1, HTTP/2, TLS.
//!
//! In:    bytes from strangers. Out: requests (`message/`) to a function that answers them, its answers back.
//! Never: knows about locks, about who asks, or about what is asked for.

pub(crate) mod adapt;
pub mod http1;
pub mod http2;
pub mod tls;
pub mod wire;
