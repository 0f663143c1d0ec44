//! What the service's own commands and tests use beyond the library: the feature `internals`.
//!
//! In:    private modules. Out: the part of them that `leasehold` and its tests need.
//! Never: for other programs. It may change with any release, without notice.

pub use crate::driver::fresh_key;

/// Addresses of servers.
pub mod address {
    pub use crate::address::Address;
}

/// The claim machine.
pub mod machine {
    pub use crate::machine::*;
    pub use crate::transitions::TRANSITIONS;
}

/// The keychain process.
pub mod keychain {
    pub use crate::keychain::*;
}

/// Any request to a service.
pub mod http {
    pub use crate::http::{Call, Streamed};
}

/// Sessions, for commands that are started by other commands.
pub mod session {
    pub use crate::session::{VARIABLE, from_env};
}

/// Settings as commands read them.
pub mod settings {
    pub use crate::settings::{read_key, split_urls};
}

/// The JSON of the claims API.
pub mod wire {
    pub use crate::wire::{FINAL, detail, id_of};
}
