//! What a hostile server or a curious neighbour can do to clients.
