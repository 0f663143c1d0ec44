//! Several addresses, of which the first ones can't help; and certificates that are wrong.

use std::io::Write;
use std::sync::atomic::Ordering;

use leasehold_dss::{Client, Errno, Kind, Options};
use leasehold_lab::port::Port;

use crate::harness::{Certificate, Server};
use crate::lost::{ME, client, errnos, forgetful_proxy, read_request, serve};

/// What calls give when everything is free: one lock is taken and given back.
const FINE: [i32; 4] = [0, 0, 0, libc::ENOLCK];

#[test]
fn an_address_that_cannot_help_is_left_for_the_next_one() {
    let server = Server::start();
    let nobody = Port::reserve().unwrap();
    let answering = |answer: &'static str| {
        serve(
            move |mut stream| {
                while read_request(&mut stream).is_some() && stream.write_all(answer.as_bytes()).is_ok() {}
            },
        )
    };
    let silent = serve(|mut stream| while read_request(&mut stream).is_some() {});
    for first in [
        format!("http://{}", nobody.addr),
        silent,
        serve(|mut stream| drop(read_request(&mut stream))),
        answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
        answering("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope"),
        answering("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"),
        answering("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"),
        answering("HTTP/1.1 503 Not Now\r\nContent-Length: 0\r\n\r\n"),
        answering("220 mail.example.org ESMTP\r\n\r\n"),
        "https://127.0.0.1:1".into(),
    ] {
        // A new client for each call: it begins with the first address.
        let both = format!("{first},{}", server.url());
        let errno = |result: Result<(), Errno>| result.map_or_else(|errno| errno.0, |()| 0);
        let seen = [
            errno(client(&both, 60_000).lock(Kind::Media, &["a"], ME).map(drop)),
            errno(client(&both, 60_000).refresh(Kind::Media, &["a"], ME).1),
            errno(client(&both, 60_000).unlock(Kind::Media, &["a"], ME, false).1),
            errno(client(&both, 60_000).status(Kind::Media, &["a"]).1),
        ];
        assert_eq!(seen, FINE, "{first}");
        assert_eq!(
            errnos(&client(&format!("{},{first}", server.url()), 60_000)),
            FINE,
            "{first} as the second"
        );
    }
}

#[test]
fn a_lock_whose_answer_was_lost_at_one_address_is_found_at_the_next() {
    let server = Server::start();
    // Every answer of the first address is lost.
    let (forgetful, passed) = forgetful_proxy(server.port.addr, usize::MAX - 1);
    let both = format!("{forgetful},{}", server.url());
    let locks = client(&both, 60_000).lock(Kind::Media, &["a", "b"], ME).unwrap();
    assert_eq!(passed.load(Ordering::SeqCst), 1);
    let direct = client(&server.url(), 60_000);
    assert_eq!(direct.status(Kind::Media, &["a", "b"]).0, locks, "taken once");
    assert_eq!(client(&both, 60_000).unlock(Kind::Media, &["a", "b"], ME, false).1, Ok(()), "not ENOLCK");
    // What was never held stays an error, however often it is asked.
    let never = client(&both, 60_000).unlock(Kind::Media, &["c"], ME, false).1;
    assert_eq!(never, Err(Errno(libc::ENOLCK)));
}

#[test]
fn when_no_address_helps_the_most_telling_error_is_given() {
    let nobody = Port::reserve().unwrap();
    let refusing = serve(|mut stream| {
        while read_request(&mut stream).is_some() {
            stream.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n").ok();
        }
    });
    let both = format!("{refusing},http://{}", nobody.addr);
    assert_eq!(errnos(&client(&both, 60_000)), [libc::EPERM; 4]);
    let none = format!("http://{0},http://{0}", nobody.addr);
    assert_eq!(errnos(&client(&none, 60_000)), [libc::ECONNREFUSED; 4]);
}

#[test]
fn wrong_certificates_are_told_apart() {
    let ask = |server: &Server, ca: &Certificate| {
        let ca = Some(ca.pem().display().to_string());
        errnos(&Client::new(Options { url: Some(server.url()), ca, ..Options::default() }).unwrap())
    };
    let good = Certificate::new("IP:127.0.0.1", "+0s");
    let server = Server::start_secure(&good);
    assert_eq!(ask(&server, &good), FINE);
    let stranger = Certificate::new("IP:127.0.0.1", "+0s");
    assert_eq!(ask(&server, &stranger), [libc::ENOKEY; 4]);
    let elsewhere = Certificate::new("DNS:locks.example.org", "+0s");
    assert_eq!(ask(&Server::start_secure(&elsewhere), &elsewhere), [libc::EKEYREJECTED; 4]);
    let expired = Certificate::new("IP:127.0.0.1", "-5d");
    assert_eq!(ask(&Server::start_secure(&expired), &expired), [libc::EKEYEXPIRED; 4]);
    let plain = Server::start();
    let https = Options { url: Some(plain.url().replace("http:", "https:")), ..Options::default() };
    assert_eq!(errnos(&Client::new(https).unwrap()), [libc::EPROTO; 4]);
}
