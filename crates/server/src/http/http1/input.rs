//! What came in over a connection: it may hold access keys and passwords.
//!
//! In:    bytes of requests. Out: the same. Never: leaves them in memory that is given back, as far as nobody else has a part
//!        of them: a buffer that a large request outgrew is the allocator's.

use std::ops::{Deref, DerefMut};

use bytes::BytesMut;
use zeroize::Zeroize;

/// A buffer that is overwritten when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Input(BytesMut);

impl Deref for Input {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.0
    }
}

impl DerefMut for Input {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.0
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.0.clear();
        // More than there is from here to its end: so it begins at its front again, if no request has a part of it.
        let _ = self.0.try_reclaim(self.0.capacity() + 1);
        let len = self.0.capacity();
        self.0.resize(len, 0);
        self.0.as_mut().zeroize();
    }
}
