//! scratch
pub mod machine; pub mod transitions; pub mod clock;
