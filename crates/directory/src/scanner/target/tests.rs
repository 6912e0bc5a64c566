use std::net::{IpAddr, Ipv4Addr};

use hoplite_overlay::memory::{Conditions, Network};

use super::*;

const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

/// What an exit does to what it carries.
type Bend = fn(Vec<u8>) -> Vec<u8>;

/// A circuit of this rate to a target, whose exit bends what comes from it.
async fn measured(rate: u32, latency: Duration, bend: Bend) -> Result<Rates, Failure> {
    measured_late(rate, latency, Duration::ZERO, bend).await
}

/// The same, where the exit lets each request wait for so long.
async fn measured_late(
    rate: u32,
    latency: Duration,
    late: Duration,
    bend: Bend,
) -> Result<Rates, Failure> {
    let network = Network::new(1);
    network.set_conditions(Conditions {
        latency,
        rate: Some(rate),
        ..Conditions::default()
    });
    let (expected, mut listener) = (Expected::default(), network.listen(FAR));
    let target = listener.address().into();
    let serving = {
        let expected = expected.clone();
        async move {
            loop {
                let (mut near, expected) = (listener.accept().await, expected.clone());
                tokio::spawn(async move {
                    let (own, theirs) = tokio::io::duplex(1 << 16);
                    let (mut from, mut to) = tokio::io::split(own);
                    tokio::time::sleep(late).await;
                    let (mut read, mut write) = tokio::io::split(&mut near);
                    let up = async {
                        tokio::io::copy(&mut read, &mut to).await.ok();
                        to.shutdown().await.ok();
                    };
                    let down = async {
                        let mut piece = vec![0; 4096];
                        while let Ok(got @ 1..) = from.read(&mut piece).await {
                            write.write_all(&bend(piece[..got].to_vec())).await.ok();
                        }
                        write.shutdown().await.ok();
                    };
                    tokio::join!(up, down, serve(theirs, &expected, || ()));
                });
            }
        }
    };
    let overlay = network.overlay(NEAR);
    tokio::select! {
        rates = measure(&overlay, &target, &expected) => rates,
        () = serving => unreachable!("it serves for ever"),
    }
}

const HONEST: Bend = |bytes| bytes;
const SOON: Duration = Duration::from_millis(50);

#[tokio::test(start_paused = true)]
async fn a_circuit_is_found_as_fast_as_it_is_both_ways() {
    for rate in [20_000, 200_000, 2_000_000] {
        let rates = measured(rate, SOON, HONEST).await.expect("measured");
        for found in [rates.down, rates.up] {
            assert!(
                found.abs_diff(rate.into()) < u64::from(rate) / 20,
                "{rates:?} at {rate}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_takes_longer_than_anybody_waits_is_measured_by_what_has_come() {
    let rates = measured(700, SOON, HONEST).await.expect("measured");
    assert!(rates.slower().abs_diff(700) < 150, "{rates:?}");
}

/// Few are measured at once: he would keep the others from it.
#[tokio::test(start_paused = true)]
async fn one_that_answers_each_time_as_late_as_it_may_is_let_go_after_two_minutes() {
    let began = Instant::now();
    let found = measured_late(20_000, SOON, OPEN - 10 * SOON, HONEST).await;
    assert_eq!(found, Err(Failure::Stream));
    assert!(began.elapsed() <= MEASUREMENT, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_makes_bytes_up_is_found_out() {
    let forged = |mut bytes: Vec<u8>| {
        // The head stays.
        if bytes.len() > 1000 {
            bytes.iter_mut().skip(900).for_each(|byte| *byte = 0);
        }
        bytes
    };
    let found = measured(1_000_000, SOON, forged).await;
    assert_eq!(found, Err(Failure::Forged));
}

/// What the target says to `request`.
async fn answered(expected: &Expected, request: &[u8]) -> String {
    let (mut near, far) = tokio::io::duplex(1 << 20);
    let asked = async {
        near.write_all(request).await.expect("written");
        near.shutdown().await.expect("ended");
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.expect("read");
        String::from_utf8_lossy(&answer).into_owned()
    };
    let (answer, ()) = tokio::join!(asked, serve(far, expected, || ()));
    answer
}

#[tokio::test(start_paused = true)]
async fn strangers_are_served_nothing_and_a_name_is_good_for_once() {
    let expected = Expected::default();
    let ticket = expected.expect(Direction::Down, 100).expect("expected");
    let target = Target::from(std::net::SocketAddr::from((FAR, 80)));
    let asked = request(&ticket, &target);
    for strange in [
        "GET / HTTP/1.1\r\n\r\n",
        &asked.replace("GET", "POST"),
        &format!("GET /{:032x} HTTP/1.1\r\n\r\n", 7),
    ] {
        let answer = answered(&expected, strange.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    }
    for nothing in [&b"GET"[..], &[b'x'; 4 * HEAD], b"\xff\xff\r\n\r\n"] {
        assert_eq!(answered(&expected, nothing).await, "");
    }
    let answer = answered(&expected, asked.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let again = answered(&expected, asked.as_bytes()).await;
    assert!(again.starts_with("HTTP/1.1 404 "), "{again}");
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_nothing_is_let_go_soon() {
    let (_near, far) = tokio::io::duplex(1 << 10);
    let began = Instant::now();
    serve(far, &Expected::default(), || ()).await;
    assert_eq!(began.elapsed(), ASK);
}

#[tokio::test(start_paused = true)]
async fn who_is_refused_and_does_not_hang_up_is_let_go_sooner_still() {
    let (mut near, far) = tokio::io::duplex(1 << 10);
    let asked = near.write_all(b"GET / HTTP/1.1\r\n\r\n").await;
    asked.expect("written");
    let began = Instant::now();
    serve(far, &Expected::default(), || ()).await;
    assert_eq!(began.elapsed(), HANG_UP);
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_never_came_is_not_taken_for_one() {
    let expected = Expected::default();
    let ticket = expected.expect(Direction::Up, 50_000).expect("expected");
    let (mut near, exit) = tokio::io::duplex(1 << 10);
    let swallowing = async {
        let (mut read, mut write) = tokio::io::split(exit);
        let said = write.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
        said.await.expect("written");
        tokio::io::copy(&mut read, &mut tokio::io::sink())
            .await
            .ok();
    };
    let until = Instant::now() + MEASUREMENT;
    tokio::select! {
        found = upload(&mut near, &ticket.transfer, until) => assert_eq!(found, Err(Failure::Stream)),
        () = swallowing => unreachable!("it goes on"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_measured_at_once_is_bounded_and_forgotten() {
    let expected = Expected::default();
    let all: Vec<_> = (0..EXPECTED)
        .map_while(|_| expected.expect(Direction::Up, 1))
        .collect();
    assert_eq!(all.len(), EXPECTED);
    assert!(expected.expect(Direction::Up, 1).is_none());
    drop(all);
    assert!(expected.0.lock().is_empty());
}
