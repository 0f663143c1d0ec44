//! Error numbers of the system: what every function of the library returns when it fails.
//!
//! In:    I/O errors. Out: [`Errno`], and what a C function returns for it.

/// An error number of the system, as in `errno.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// That of an I/O error. What the system calls "try again" is here the end of a wait.
    pub(crate) fn of(error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINPROGRESS) => Self(libc::ETIMEDOUT),
            Some(errno) => Self(errno),
            None if error.kind() == std::io::ErrorKind::TimedOut => Self(libc::ETIMEDOUT),
            None if error.kind() == std::io::ErrorKind::OutOfMemory => Self(libc::ENOMEM),
            // The other end closed the connection without saying so, or did not take what was written.
            None if matches!(
                error.kind(),
                std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::WriteZero
            ) =>
            {
                Self(libc::ECONNRESET)
            }
            None => crate::tls::errno_in(error).unwrap_or(Self(libc::EIO)),
        }
    }

    /// The other end is gone: it may have read the request or not.
    pub(crate) fn is_lost_connection(self) -> bool {
        matches!(self.0, libc::ECONNRESET | libc::EPIPE | libc::ECONNABORTED | libc::ENOTCONN)
    }

    /// Nobody can be reached now.
    pub(crate) fn is_unreachable(self) -> bool {
        self.is_lost_connection()
            || matches!(self.0, libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN)
    }

    /// What a C function returns. A pipe that broke is a connection that was reset.
    pub(crate) fn to_c(self) -> std::ffi::c_int {
        match self.0 {
            libc::EPIPE | libc::ECONNABORTED | libc::ENOTCONN => -libc::ECONNRESET,
            errno => -errno,
        }
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}
