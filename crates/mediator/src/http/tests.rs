//! The HTTP front end as a program sees it, byte by byte.

use hoplite_overlay::Isolation;
use hoplite_testing::targets;
use hoplite_wire::socks::CredentialsView;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::testing::{
    Route, Running, Scripted, config, failures, read_all, read_exactly, start, start_with,
};

const NAME: &str = "target.example:80";
const CONNECT: &[u8] = b"CONNECT target.example:80 HTTP/1.1\r\nHost: target.example:80\r\n\r\n";
const GET: &[u8] = b"GET http://target.example/path?q=1 HTTP/1.1\r\nHost: wrong.example\r\nUser-Agent: Test\r\n\r\n";

/// Reads one header, in lower case but for the values' own letters.
async fn head(tcp: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(read_exactly(tcp, 1).await);
    }
    String::from_utf8(head).expect("text")
}

async fn send(tcp: &mut TcpStream, bytes: &[u8]) {
    tcp.write_all(bytes).await.expect("writes");
}

fn status(head: &str) -> &str {
    head.split(' ').nth(1).expect("a status line")
}

async fn with_target() -> (Running, TcpListener) {
    let (listener, address) = targets::listener().await;
    (
        start(Scripted::default().route(NAME, Route::To(address))),
        listener,
    )
}

async fn accept(listener: &TcpListener) -> TcpStream {
    listener.accept().await.expect("accepts").0
}

/// Sends one request that gets an answer from the front itself; answers with its header and body.
async fn refused(front: &Running, request: &[u8]) -> (String, String) {
    let mut tcp = front.to_http().await;
    send(&mut tcp, request).await;
    let head = head(&mut tcp).await;
    let len = head
        .split("content-length: ")
        .nth(1)
        .and_then(|rest| rest.split("\r\n").next());
    let body = read_exactly(
        &mut tcp,
        len.map_or(0, |len| len.parse().expect("a number")),
    )
    .await;
    (head, String::from_utf8(body).expect("text"))
}

#[tokio::test]
async fn connect_makes_a_tunnel_and_loses_no_early_data() {
    let front = start(Scripted::default().route(NAME, Route::To(targets::tcp_echo().await)));
    let mut tcp = front.to_http().await;
    send(&mut tcp, &[CONNECT, b"early"].concat()).await;
    assert_eq!(head(&mut tcp).await, "HTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(read_exactly(&mut tcp, 5).await, b"early");
    send(&mut tcp, b"late").await;
    tcp.shutdown().await.expect("half-closes");
    assert_eq!(read_all(&mut tcp).await, b"late");
    assert_eq!(front.overlay.asked(), [(NAME.into(), Isolation::default())]);
}

#[tokio::test]
async fn a_target_that_resets_its_tunnel_is_a_reset_for_the_program() {
    let (front, listener) = with_target().await;
    let mut tcp = front.to_http().await;
    send(&mut tcp, CONNECT).await;
    head(&mut tcp).await;
    accept(&listener).await.set_zero_linger().expect("sets");
    assert!(tcp.read(&mut [0]).await.is_err());
}

#[tokio::test]
async fn every_failure_has_its_status_and_says_what_to_do() {
    for (error, _, code, token) in failures() {
        let front = start(Scripted::default().route(NAME, Route::Fail(error.clone())));
        for request in [CONNECT, GET] {
            let (head, body) = refused(&front, request).await;
            assert_eq!(status(&head), code.to_string(), "{error}");
            assert!(
                head.contains(&format!("proxy-status: hoplite; error={token}\r\n")),
                "{head}"
            );
            assert!(body.starts_with(&format!("hoplite: {error}: ")), "{body}");
        }
        assert_eq!(front.counters.snapshot().streams, 0);
    }
}

#[tokio::test]
async fn a_refused_connect_leaves_the_connection_for_the_next_request() {
    let front = start(Scripted::default().route(NAME, Route::To(targets::tcp_echo().await)));
    let mut tcp = front.to_http().await;
    send(&mut tcp, b"CONNECT other.example:80 HTTP/1.1\r\n\r\n").await;
    let answer = head(&mut tcp).await;
    let len = answer.split("content-length: ").nth(1).expect("a length");
    let len = len.trim_end().split("\r\n").next().expect("a line");
    read_exactly(&mut tcp, len.parse().expect("a number")).await;
    send(&mut tcp, CONNECT).await;
    assert_eq!(status(&head(&mut tcp).await), "200");
}

#[tokio::test(start_paused = true)]
async fn an_overlay_that_never_answers_is_a_gateway_time_out() {
    let front = start(Scripted::default().route(NAME, Route::Hang));
    assert_eq!(status(&refused(&front, GET).await.0), "504");
}

#[tokio::test]
async fn proxy_credentials_isolate_and_never_travel_on() {
    let (front, listener) = with_target().await;
    let mut tcp = front.to_http().await;
    send(&mut tcp, b"GET http://target.example/ HTTP/1.1\r\nProxy-Authorization: Basic bWU6YW55\r\nAuthorization: mine\r\n\r\n").await;
    let seen = head(&mut accept(&listener).await).await;
    assert!(!seen.to_lowercase().contains("proxy"), "{seen}");
    assert!(seen.contains("Authorization: mine"), "{seen}");
    let (user, password) = (&b"me"[..], &b"any"[..]);
    let token = Isolation::new(CredentialsView { user, password }.isolation());
    assert_eq!(front.overlay.asked(), [(NAME.into(), token)]);
}

#[tokio::test]
async fn the_target_sees_an_ordinary_request_and_nothing_about_the_proxy() {
    let (front, listener) = with_target().await;
    let mut tcp = front.to_http().await;
    let request = [
        &GET[..GET.len() - 2],
        b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nProxy-Connection: keep-alive\r\n\r\n",
    ]
    .concat();
    send(&mut tcp, &request).await;
    let seen = head(&mut accept(&listener).await).await;
    assert_eq!(
        seen,
        "GET /path?q=1 HTTP/1.1\r\nHost: target.example\r\nUser-Agent: Test\r\n\r\n"
    );
}

#[tokio::test]
async fn connections_are_kept_on_both_sides() {
    let (front, listener) = with_target().await;
    let mut tcp = front.to_http().await;
    send(&mut tcp, GET).await;
    let mut target = accept(&listener).await;
    for body in ["one", "two"] {
        head(&mut target).await;
        send(
            &mut target,
            format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nKeep-Alive: 5\r\nX: y\r\n\r\n{body}")
                .as_bytes(),
        )
        .await;
        assert_eq!(
            head(&mut tcp).await,
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX: y\r\n\r\n"
        );
        assert_eq!(read_exactly(&mut tcp, 3).await, body.as_bytes());
        send(&mut tcp, GET).await;
    }
    assert_eq!(front.overlay.asked().len(), 1);
}

#[tokio::test]
async fn a_target_that_closed_meanwhile_is_asked_again_on_a_new_connection() {
    let (front, listener) = with_target().await;
    let mut tcp = front.to_http().await;
    for _ in 0..2 {
        send(&mut tcp, GET).await;
        let mut target = accept(&listener).await;
        head(&mut target).await;
        send(&mut target, b"HTTP/1.1 204 No Content\r\n\r\n").await;
        assert_eq!(status(&head(&mut tcp).await), "204");
    }
}

#[tokio::test]
async fn chunked_bodies_stream_both_ways() {
    let (front, listener) = with_target().await;
    let mut tcp = front.to_http().await;
    send(&mut tcp, b"POST http://target.example/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n3\r\nabc\r\n").await;
    let mut target = accept(&listener).await;
    let seen = head(&mut target).await.to_lowercase();
    assert!(
        seen.contains("transfer-encoding: chunked") && !seen.contains("content-length"),
        "{seen}"
    );
    assert_eq!(read_exactly(&mut target, 8).await, b"3\r\nabc\r\n");
    send(&mut tcp, b"0\r\n\r\n").await;
    assert_eq!(read_exactly(&mut target, 5).await, b"0\r\n\r\n");
    send(
        &mut target,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
    )
    .await;
    assert!(
        head(&mut tcp)
            .await
            .to_lowercase()
            .contains("transfer-encoding: chunked")
    );
    assert_eq!(read_exactly(&mut tcp, 7).await, b"2\r\nhi\r\n");
}

#[tokio::test]
async fn a_program_that_waits_for_100_is_told_to_continue() {
    let (front, listener) = with_target().await;
    let mut tcp = front.to_http().await;
    send(
        &mut tcp,
        b"PUT http://target.example/ HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n",
    )
    .await;
    let mut target = accept(&listener).await;
    head(&mut target).await;
    assert_eq!(status(&head(&mut tcp).await), "100");
    send(&mut tcp, b"ok").await;
    assert_eq!(read_exactly(&mut target, 2).await, b"ok");
    send(
        &mut target,
        b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n",
    )
    .await;
    assert_eq!(status(&head(&mut tcp).await), "201");
}

#[tokio::test]
async fn an_answer_to_head_has_a_length_and_no_body() {
    let (front, listener) = with_target().await;
    let mut tcp = front.to_http().await;
    send(&mut tcp, b"HEAD http://target.example/ HTTP/1.1\r\n\r\n").await;
    let mut target = accept(&listener).await;
    head(&mut target).await;
    send(
        &mut target,
        b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n",
    )
    .await;
    assert!(head(&mut tcp).await.contains("Content-Length: 12345\r\n"));
    send(&mut tcp, b"OPTIONS * HTTP/1.1\r\n\r\n").await;
    assert_eq!(status(&head(&mut tcp).await), "400");
}

#[tokio::test]
async fn a_body_that_breaks_off_is_no_complete_answer() {
    for framing in ["Content-Length: 100", "Transfer-Encoding: chunked"] {
        let (front, listener) = with_target().await;
        let mut tcp = front.to_http().await;
        send(&mut tcp, GET).await;
        let mut target = accept(&listener).await;
        head(&mut target).await;
        send(
            &mut target,
            format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n2\r\nhi\r\n").as_bytes(),
        )
        .await;
        head(&mut tcp).await;
        drop(target);
        assert!(tcp.read_to_end(&mut Vec::new()).await.is_err(), "{framing}");
    }
}

#[tokio::test]
async fn a_target_that_resets_in_the_middle_of_an_old_style_body_is_a_reset() {
    let (front, listener) = with_target().await;
    let mut tcp = front.to_http().await;
    send(&mut tcp, b"GET http://target.example/ HTTP/1.0\r\n\r\n").await;
    let mut target = accept(&listener).await;
    head(&mut target).await;
    send(&mut target, b"HTTP/1.1 200 OK\r\n\r\npart").await;
    head(&mut tcp).await;
    read_exactly(&mut tcp, 4).await;
    target.set_zero_linger().expect("sets");
    drop(target);
    assert!(tcp.read_to_end(&mut Vec::new()).await.is_err());
}

#[tokio::test]
async fn a_target_that_does_not_speak_http_is_a_bad_gateway() {
    for (answer, token) in [
        (&b"SSH-2.0-x\r\n\r\n"[..], "http_protocol_error"),
        (b"", "connection_terminated"),
    ] {
        let (front, listener) = with_target().await;
        let mut tcp = front.to_http().await;
        send(&mut tcp, GET).await;
        let mut target = accept(&listener).await;
        head(&mut target).await;
        send(&mut target, answer).await;
        drop(target);
        let head = head(&mut tcp).await;
        assert_eq!(status(&head), "502");
        assert!(head.contains(token), "{head}");
    }
}

#[tokio::test]
async fn a_page_that_opens_the_proxy_gets_help_and_reaches_nothing() {
    let front = start(Scripted::default());
    let page = b"GET / HTTP/1.1\r\nHost: rebound.example\r\n\r\n";
    let (head, body) = refused(&front, page).await;
    assert_eq!(status(&head), "200");
    assert!(body.contains("this is an HTTP proxy") && head.contains("connection: close"));
    let post = b"POST /x HTTP/1.1\r\nHost: rebound.example\r\nContent-Length: 75\r\n\r\n\
        GET http://target.example/ HTTP/1.1\r\nHost: target.example\r\nX: 0123456789\r\n\r\n";
    assert_eq!(status(&refused(&front, post).await.0), "400");
    assert_eq!(front.overlay.asked(), []);
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_and_nobody_is_asked() {
    let front = start(Scripted::default());
    for request in [
        &b"GET https://target.example/ HTTP/1.1\r\n\r\n"[..],
        b"GET ftp://target.example/ HTTP/1.1\r\n\r\n",
        b"GET http://target.example:99999/ HTTP/1.1\r\n\r\n",
        b"GET http://target.example:0/ HTTP/1.1\r\n\r\n",
        b"CONNECT target.example HTTP/1.1\r\n\r\n",
        b"CONNECT target.example:0 HTTP/1.1\r\n\r\n",
        b"CONNECT user@target.example:80 HTTP/1.1\r\n\r\n",
        b"\x05\x01\x00\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
        b"GET http://target.example/ HTTP/9.9\r\n\r\n",
        b"POST http://target.example/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ] {
        let (head, _) = refused(&front, request).await;
        assert_eq!(status(&head), "400", "{}", request.escape_ascii());
    }
    assert_eq!(front.overlay.asked(), []);
}

#[tokio::test]
async fn a_header_that_is_too_large_is_refused() {
    let mut config = config();
    config.limits.header = 8192;
    let front = start_with(Scripted::default(), config);
    let cookie = "x".repeat(20_000);
    let request = format!("GET http://target.example/ HTTP/1.1\r\nCookie: {cookie}\r\n\r\n");
    let mut tcp = front.to_http().await;
    let _cut_off = tcp.write_all(request.as_bytes()).await;
    assert_eq!(status(&head(&mut tcp).await), "431");
    assert_eq!(front.overlay.asked(), []);
}

#[tokio::test(start_paused = true)]
async fn a_slow_header_is_cut_off() {
    let front = start(Scripted::default());
    let mut tcp = front.to_http().await;
    send(&mut tcp, b"GET http://target.example/ HTTP/1.1\r\n").await;
    assert!(tcp.read(&mut [0]).await.is_err());
    assert_eq!(front.counters.snapshot().malformed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_next_request_is_closed_in_order() {
    let front = start(Scripted::default());
    let mut tcp = front.to_http().await;
    send(&mut tcp, b"GET ftp://target.example/ HTTP/1.1\r\n\r\n").await;
    let answer = read_all(&mut tcp).await;
    assert!(answer.starts_with(b"HTTP/1.1 400 "));
    assert_eq!(
        front.counters.snapshot().malformed,
        1,
        "the request was, the rest was not"
    );
}

#[tokio::test]
async fn a_program_that_leaves_gives_the_opening_up() {
    let front = start(Scripted::default().route(NAME, Route::Hang));
    for request in [CONNECT, GET] {
        let mut tcp = front.to_http().await;
        send(&mut tcp, request).await;
        while front.overlay.opening() == 0 {
            tokio::task::yield_now().await;
        }
        drop(tcp);
        while front.overlay.opening() > 0 {
            tokio::task::yield_now().await;
        }
    }
}
