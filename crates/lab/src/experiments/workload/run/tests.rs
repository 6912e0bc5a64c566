//! What a researcher sees of workloads: sizes, phases, and the right word when something fails.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use hoplite_wire::socks::ReplyCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::testing::*;
use crate::experiments::workload::{
    Choice, Kind, Phases, Ports, Transfer, Way,
    transfer::{Answer, HEAD, Head, Sender, Status},
};

/// Every phase that was reached, in the order in which they must come.
fn stamps(phases: &Phases) -> Vec<u64> {
    let before = [
        phases.socket,
        phases.connect,
        phases.proxy_choice,
        phases.proxy_request,
        phases.proxy_response,
        phases.tls,
        phases.command,
        phases.response,
        phases.first_byte,
    ];
    let after = [phases.last_byte, phases.checksum];
    let deciles = phases.deciles.iter().copied().map(Some);
    before
        .into_iter()
        .chain(deciles)
        .chain(after)
        .flatten()
        .collect()
}

#[track_caller]
fn assert_complete(transfer: &Transfer) {
    assert_eq!(transfer.error, None);
    let stamps = stamps(&transfer.phases);
    assert!(stamps.is_sorted(), "{stamps:?}");
    assert_eq!(transfer.phases.deciles.len(), 9);
    assert!(transfer.phases.partial.is_sorted());
    assert!(transfer.phases.checksum.is_some() && transfer.phases.last_byte.is_some());
}

#[test]
fn a_download_and_an_upload_move_what_was_asked_for_and_tell_every_phase() {
    block_on(async {
        let ports = serve();
        let bytes = 3_000_001;
        for (kind, moved) in [
            (Kind::Download(bulk(bytes)), [0, bytes]),
            (Kind::Upload(bulk(bytes)), [bytes, 0]),
        ] {
            let transfer = work_one(&order(kind, ports)).await;
            assert_complete(&transfer);
            assert_eq!((transfer.asked, transfer.moved), (moved, moved));
            assert_eq!(transfer.seen_as, Some("127.0.0.1".parse().unwrap()));
            assert_eq!(transfer.phases.partial.len(), 8);
            assert_eq!((transfer.number, transfer.connection), (1, 1));
        }
    });
}

#[test]
fn one_byte_is_a_transfer() {
    block_on(async {
        let ports = serve();
        for kind in [Kind::Download(bulk(1)), Kind::Upload(bulk(1))] {
            assert_complete(&work_one(&order(kind, ports)).await);
        }
    });
}

#[test]
fn several_connections_share_the_size_and_are_summed_up() {
    block_on(async {
        let ports = serve();
        let bulk = crate::experiments::workload::Bulk {
            connections: 3,
            count: 2,
            ..bulk(1_000_000)
        };
        for kind in [Kind::Download(bulk.clone()), Kind::Upload(bulk)] {
            let transfers = work(&order(kind, ports)).await;
            assert_eq!(transfers.len(), 8);
            transfers.iter().for_each(assert_complete);
            for number in [1, 2] {
                let of = transfers.iter().filter(|t| t.number == number);
                let (sums, parts): (Vec<_>, Vec<_>) = of.partition(|t| t.connection == 0);
                assert_eq!((sums.len(), parts.len()), (1, 3));
                assert_eq!(sums[0].moved.iter().sum::<u64>(), 1_000_000);
                assert_eq!(parts.iter().flat_map(|t| t.moved).sum::<u64>(), 1_000_000);
            }
        }
    });
}

#[test]
fn each_transfer_goes_to_the_server_that_is_nearest_to_where_it_is_seen_from() {
    block_on(async {
        let ports = serve();
        let [first, near]: [IpAddr; 2] = ["127.0.0.1", "127.0.0.2"].map(|ip| ip.parse().unwrap());
        for (connections, transfers) in [(1, 2), (2, 6)] {
            let bulk = crate::experiments::workload::Bulk {
                connections,
                count: 2,
                ..bulk(1000)
            };
            let mut order = order(Kind::Upload(bulk), ports);
            order.nearest = [(first, near)].into();
            let done = work(&order).await;
            assert_eq!(done.len(), transfers);
            done.iter().for_each(assert_complete);
            assert!(done.iter().all(|transfer| transfer.server == Some(near)));
            order.nearest = [(near, near)].into();
            let done = work(&order).await;
            let faults: Vec<_> = done.iter().map(fault).collect();
            assert_eq!(
                faults,
                ["MISC", "MISC"],
                "where it is seen from nobody knows"
            );
            order.ports.transfer = closed_port().await;
            let done = work(&order).await;
            let faults: Vec<_> = done.iter().map(fault).collect();
            assert_eq!(faults, ["CONNECT", "CONNECT"], "nobody can be asked");
            assert!(done.iter().all(|transfer| transfer.asked == [1000, 0]));
        }
    });
}

/// A port that nobody listens on.
async fn closed_port() -> u16 {
    listen().await.1.port()
}

#[test]
fn a_transfer_by_time_ends_by_itself() {
    block_on(async {
        let ports = serve();
        let bulk = crate::experiments::workload::Bulk {
            time: Duration::from_millis(50),
            ..bulk(0)
        };
        for kind in [Kind::Download(bulk.clone()), Kind::Upload(bulk)] {
            let transfer = work_one(&order(kind, ports)).await;
            assert_complete(&transfer);
            assert!(transfer.moved.iter().sum::<u64>() > 0);
        }
    });
}

#[test]
fn requests_have_a_round_trip_each_and_both_directions_are_checked() {
    block_on(async {
        let kind = Kind::Request {
            request: 100,
            response: 70_000,
            count: 7,
            pause: Duration::from_millis(1),
        };
        let transfer = work_one(&order(kind, serve())).await;
        assert_complete(&transfer);
        assert_eq!(transfer.round_trips.len(), 7);
        assert_eq!(transfer.moved, [700, 490_000]);
    });
}

#[test]
fn a_schedule_goes_both_ways_and_is_the_same_for_the_same_seed() {
    block_on(async {
        let choice = |sendsize, recvsize| Choice {
            sendsize,
            recvsize,
            pause: Duration::ZERO,
            weight: 1.0,
        };
        let choices = vec![choice(1000, 50_000), choice(200_000, 300_000), choice(0, 5)];
        let mut order = order(Kind::Schedule { choices, count: 12 }, serve());
        order.seed = 2;
        let (once, again) = (work(&order).await, work(&order).await);
        let sizes = |transfers: &[Transfer]| transfers.iter().map(|t| t.moved).collect::<Vec<_>>();
        once.iter().for_each(assert_complete);
        assert_eq!(sizes(&once), sizes(&again));
        assert_eq!(sizes(&once).into_iter().collect::<BTreeSet<_>>().len(), 3);
        for transfer in once {
            let both = transfer.moved[0] > 0;
            assert_eq!(transfer.more.contains_key("send_last_byte_us"), both);
        }
    });
}

#[test]
fn each_transfer_through_a_socks_proxy_has_a_token_of_its_own() {
    block_on(async {
        let (way, mut told) = socks(None).await;
        let bulk = crate::experiments::workload::Bulk {
            count: 3,
            connections: 2,
            ..bulk(10_000)
        };
        let order = crate::experiments::workload::Order {
            way,
            ..order(Kind::Download(bulk), serve())
        };
        let transfers = work(&order).await;
        for transfer in &transfers {
            assert_complete(transfer);
            let proxied = transfer.phases.proxy_response.is_some();
            assert_eq!(proxied, transfer.connection > 0);
        }
        let tokens: BTreeSet<_> = (0..6).map(|_| told.try_recv().unwrap()).collect();
        assert_eq!(tokens.len(), 3);
    });
}

#[test]
fn a_proxy_that_refuses_is_a_proxy_error_with_its_reason() {
    block_on(async {
        let (way, _told) = socks(Some(ReplyCode::HostUnreachable)).await;
        let mut order = order(Kind::Download(bulk(1000)), Ports::default());
        order.way = way;
        let transfer = work_one(&order).await;
        assert_eq!(fault(&transfer), "PROXY");
        assert!(transfer.error.unwrap().why.contains("HostUnreachable"));

        order.way = http_proxy("HTTP/1.1 403 Forbidden\r\n\r\n", 1).await;
        let transfer = work_one(&order).await;
        assert_eq!(fault(&transfer), "PROXY");
        assert!(transfer.error.unwrap().why.contains("403"));
    });
}

#[test]
fn a_download_goes_through_an_http_proxy() {
    block_on(async {
        let ports = serve();
        let mut order = order(Kind::Download(bulk(100_000)), ports);
        order.way = http_proxy("HTTP/1.1 200 OK\r\nx: y\r\n\r\n", ports.transfer).await;
        let transfer = work_one(&order).await;
        assert_complete(&transfer);
        assert!(transfer.phases.proxy_response.is_some());
    });
}

#[test]
fn a_closed_port_is_a_connect_error() {
    block_on(async {
        let (listener, address) = listen().await;
        drop(listener);
        let ports = Ports {
            transfer: address.port(),
            ..Ports::default()
        };
        let mut order = order(Kind::Download(bulk(1000)), ports);
        assert_eq!(fault(&work_one(&order).await), "CONNECT");
        order.way = Way::Socks {
            address,
            udp: false,
        };
        assert_eq!(fault(&work_one(&order).await), "CONNECT");
    });
}

/// Reads a head and answers it.
async fn begin(stream: &mut tokio::net::TcpStream) -> Head {
    let mut head = [0; HEAD];
    stream.read_exact(&mut head).await.unwrap();
    let head = Head::parse(&head).unwrap();
    let answer = Answer {
        status: Status::Fine,
        seen_as: "10.0.0.1".parse().unwrap(),
        token: head.token,
    };
    stream.write_all(&answer.emit()).await.unwrap();
    head
}

#[test]
fn a_server_that_lies_about_the_hash_is_a_checksum_error_and_nothing_counts() {
    block_on(async {
        let ports = serve_with(|mut stream| async move {
            let head = begin(&mut stream).await;
            let mut bytes = Sender::new(head.seed).frame(1000, true).0.to_vec();
            *bytes.last_mut().unwrap() ^= 1;
            stream.write_all(&bytes).await.unwrap();
        })
        .await;
        let transfer = work_one(&order(Kind::Download(bulk(1000)), ports)).await;
        assert_eq!(fault(&transfer), "CHECKSUM");
        assert_eq!(transfer.moved, [0, 0]);
        assert_eq!(transfer.more["unchecked_received"], 1000.0);
    });
}

#[test]
fn one_changed_bit_of_payload_is_a_checksum_error_whichever_way_it_went() {
    block_on(async {
        let ports = serve();
        let request = || Kind::Request {
            request: 1000,
            response: 1000,
            count: 3,
            pause: Duration::ZERO,
        };
        let choices = vec![Choice {
            sendsize: 5000,
            recvsize: 5000,
            pause: Duration::ZERO,
            weight: 1.0,
        }];
        let schedule = || Kind::Schedule {
            choices: choices.clone(),
            count: 1,
        };
        let time = crate::experiments::workload::Bulk {
            time: Duration::from_millis(20),
            ..bulk(0)
        };
        // Behind the head or the answer, and the length of the frame.
        for (kind, up) in [
            (Kind::Download(bulk(100_000)), false),
            (Kind::Download(time.clone()), false),
            (Kind::Upload(bulk(100_000)), true),
            (Kind::Upload(time), true),
            (request(), true),
            (request(), false),
            (schedule(), true),
            (schedule(), false),
        ] {
            let transfer = bent(ports.transfer, up, 500).await;
            let order = order(kind.clone(), Ports { transfer, ..ports });
            let transfer = work_one(&order).await;
            assert_eq!(fault(&transfer), "CHECKSUM", "{kind:?} {up}: {transfer:?}");
            assert_eq!(transfer.moved[usize::from(!up)], 0, "{kind:?}");
        }
    });
}

#[test]
fn the_payload_of_another_transfer_is_a_checksum_error_though_it_is_whole() {
    block_on(async {
        let ports = serve_with(|mut stream| async move {
            let head = begin(&mut stream).await;
            let bytes = Sender::new(head.seed ^ 1).frame(1000, true).0.to_vec();
            stream.write_all(&bytes).await.unwrap();
        })
        .await;
        let transfer = work_one(&order(Kind::Download(bulk(1000)), ports)).await;
        assert_eq!(fault(&transfer), "CHECKSUM");
    });
}

#[test]
fn a_server_that_sends_too_little_or_too_much_is_found_out() {
    block_on(async {
        for (sent, word) in [(999, "CHECKSUM"), (1001, "READ")] {
            let ports = serve_with(move |mut stream| async move {
                let head = begin(&mut stream).await;
                let bytes = Sender::new(head.seed).frame(sent, true).0.to_vec();
                stream.write_all(&bytes).await.unwrap();
            })
            .await;
            let transfer = work_one(&order(Kind::Download(bulk(1000)), ports)).await;
            assert_eq!(fault(&transfer), word);
        }
    });
}

#[test]
fn a_server_that_breaks_off_is_a_closed_error_with_the_phases_until_then() {
    block_on(async {
        let ports = serve_with(|mut stream| async move {
            let head = begin(&mut stream).await;
            let bytes = Sender::new(head.seed).frame(1000, true).0.to_vec();
            stream.write_all(&bytes[..504]).await.unwrap();
        })
        .await;
        let transfer = work_one(&order(Kind::Download(bulk(1000)), ports)).await;
        assert_eq!(fault(&transfer), "CLOSED");
        assert_eq!(transfer.phases.deciles.len(), 5);
        assert_eq!(transfer.phases.last_byte, None);
    });
}

#[test]
fn a_server_that_stalls_and_one_that_dawdles_are_told_apart() {
    block_on(async {
        let ports = serve_with(|mut stream| async move {
            begin(&mut stream).await;
            std::future::pending::<()>().await;
        })
        .await;
        let mut order = order(Kind::Download(bulk(1000)), ports);
        order.plan.stall = Duration::from_millis(20);
        assert_eq!(fault(&work_one(&order).await), "STALL");
        (order.plan.stall, order.plan.timeout) = (order.plan.timeout, order.plan.stall);
        assert_eq!(fault(&work_one(&order).await), "TIMEOUT");
    });
}

#[test]
fn something_else_behind_the_port_is_an_auth_error() {
    block_on(async {
        let ports = serve_with(|mut stream| async move {
            let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(answer).await.unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.unwrap();
        })
        .await;
        let transfer = work_one(&order(Kind::Download(bulk(1000)), ports)).await;
        assert_eq!(fault(&transfer), "AUTH");
    });
}

#[test]
fn transfers_that_fail_do_not_end_the_others() {
    block_on(async {
        let turn = std::sync::atomic::AtomicU32::new(0);
        let honest = serve().transfer;
        let ports = serve_with(move |mut stream| {
            let odd = turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2 == 1;
            async move {
                if odd {
                    return;
                }
                let mut onward = tokio::net::TcpStream::connect(("127.0.0.1", honest))
                    .await
                    .unwrap();
                drop(tokio::io::copy_bidirectional(&mut stream, &mut onward).await);
            }
        })
        .await;
        let bulk = crate::experiments::workload::Bulk {
            count: 6,
            ..bulk(5000)
        };
        let transfers = work(&order(Kind::Download(bulk), ports)).await;
        let words: Vec<_> = transfers.iter().map(fault).collect();
        assert_eq!(words, ["", "CLOSED", "", "CLOSED", "", "CLOSED"]);
    });
}

#[test]
fn a_server_goes_on_after_a_client_that_talks_nonsense() {
    block_on(async {
        let ports = serve();
        for nonsense in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 4096], &[0xff; 64]] {
            let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", ports.transfer))
                .await
                .unwrap();
            stream.write_all(nonsense).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut rest = Vec::new();
            drop(stream.read_to_end(&mut rest).await);
        }
        assert_complete(&work_one(&order(Kind::Download(bulk(1000)), ports)).await);
    });
}

#[test]
fn an_order_and_a_transfer_are_read_as_written() {
    let order = order(Kind::Download(bulk(1)), Ports::default());
    let text = serde_json::to_string(&order).unwrap();
    assert_eq!(
        serde_json::from_str::<crate::experiments::workload::Order>(&text).unwrap(),
        order
    );
}
