//! From nothing to a held claim and its hand-over: the tour of the README, over a real socket.

use crate::common::Server;

#[test]
fn the_second_claim_waits_and_gets_its_turn_when_the_first_is_released() {
    let server = Server::start();
    let first = server.claim("db/main", 30.0);
    let second = server.claim("db/main", 30.0);
    assert_eq!(server.status(&first), "active");
    assert_eq!(server.status(&second), "waiting");
    assert_eq!(server.patch(&first, r#"{"status": "released"}"#).status, 204);
    assert_eq!(server.status(&second), "active");
}
