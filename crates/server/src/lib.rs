//! The Leasehold service.
