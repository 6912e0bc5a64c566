//! Fetches over loopback.

use crate::experiments::workload::{
    Congestion, Kind, Ports, Transfer, Tuning, Way, run::testing::*,
};

fn fetches(version: u8, parallel: u16, fresh: bool) -> Kind {
    Kind::Http {
        version,
        bytes: 300_000,
        count: 6,
        parallel,
        fresh,
        upload: false,
        tuning: Tuning::default(),
    }
}

#[track_caller]
fn assert_complete(transfers: &[Transfer]) {
    let mut numbers: Vec<_> = transfers.iter().map(|transfer| transfer.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    for transfer in transfers {
        assert_eq!(transfer.error, None);
        assert_eq!(transfer.moved, [0, 300_000]);
        assert_eq!(transfer.seen_as, Some("127.0.0.1".parse().unwrap()));
        let phases = &transfer.phases;
        let all = [phases.socket, phases.connect, phases.tls, phases.command];
        let all = all
            .into_iter()
            .chain([phases.response, phases.first_byte])
            .flatten();
        let all: Vec<_> = all
            .chain(phases.deciles.iter().copied())
            .chain(phases.checksum)
            .collect();
        assert!(all.is_sorted() && phases.deciles.len() == 9, "{phases:?}");
    }
}

fn connected(transfers: &[Transfer]) -> usize {
    transfers
        .iter()
        .filter(|transfer| transfer.phases.connect.is_some())
        .count()
}

#[test]
fn every_version_fetches_with_a_connection_each_or_as_few_as_it_can() {
    block_on(async {
        let ports = serve();
        for version in [1, 2, 3] {
            for parallel in [1, 3] {
                let transfers = work(&order(fetches(version, parallel, true), ports)).await;
                assert_complete(&transfers);
                assert_eq!(connected(&transfers), 6);
                let transfers = work(&order(fetches(version, parallel, false), ports)).await;
                assert_complete(&transfers);
                let few = if version == 1 { parallel.into() } else { 1 };
                assert_eq!(
                    connected(&transfers),
                    few,
                    "HTTP/{version}, {parallel} at once"
                );
            }
        }
    });
}

#[test]
fn every_version_goes_through_a_socks_proxy() {
    block_on(async {
        let ports = serve();
        for version in [1, 2, 3] {
            let (way, mut told) = socks(None).await;
            let mut order = order(fetches(version, 2, false), ports);
            order.way = way;
            let transfers = work(&order).await;
            assert_complete(&transfers);
            assert!(
                transfers
                    .iter()
                    .any(|transfer| transfer.phases.proxy_response.is_some())
            );
            assert!(told.try_recv().is_ok());
        }
    });
}

#[test]
fn a_changed_bit_of_a_body_and_the_body_of_another_fetch_are_checksum_errors() {
    block_on(async {
        let ports = serve();
        let one = |ports| {
            let mut kind = fetches(1, 1, true);
            if let Kind::Http { count, .. } = &mut kind {
                *count = 1;
            }
            order(kind, ports)
        };
        // Behind the head.
        let http = bent(ports.http, false, 100_000).await;
        let transfer = work_one(&one(Ports { http, ..ports })).await;
        assert_eq!(fault(&transfer), "CHECKSUM", "{transfer:?}");
        assert_eq!(transfer.moved, [0, 0]);
        // A cache that mixes up two fetches of one size.
        let mixed = serve_with(|stream| async move {
            let respond = |_: http::Request<hyper::body::Incoming>| async {
                let peer = ([127, 0, 0, 1], 9).into();
                let response = hoplite_workload::web::response("/300000/1", peer);
                Ok::<_, std::convert::Infallible>(response)
            };
            let service = hyper::service::service_fn(respond);
            let stream = hyper_util::rt::TokioIo::new(stream);
            let server = hyper::server::conn::http1::Builder::new();
            server.serve_connection(stream, service).await.ok();
        })
        .await;
        let http = mixed.transfer;
        let transfer = work_one(&one(Ports { http, ..ports })).await;
        assert_eq!(fault(&transfer), "CHECKSUM", "{transfer:?}");
    });
}

#[test]
fn a_closed_port_fails_each_fetch_and_not_the_order() {
    block_on(async {
        let (listener, address) = listen().await;
        drop(listener);
        let ports = Ports {
            http: address.port(),
            https: address.port(),
            ..Ports::default()
        };
        for version in [1, 2] {
            let transfers = work(&order(fetches(version, 2, false), ports)).await;
            assert!(
                transfers
                    .iter()
                    .all(|transfer| fault(transfer) == "CONNECT")
            );
            assert_eq!(transfers.len(), 6);
        }
    });
}

#[test]
fn a_server_that_is_silent_is_a_stall_in_every_version() {
    block_on(async {
        let ports = serve_with(|stream| async move {
            std::future::pending::<()>().await;
            drop(stream);
        })
        .await;
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let quic = udp.local_addr().unwrap().port();
        for version in [1, 2, 3] {
            let https = if version == 3 { quic } else { ports.transfer };
            let http = ports.transfer;
            let ports = Ports {
                http,
                https,
                ..ports
            };
            let mut order = order(fetches(version, 6, true), ports);
            order.plan.stall = std::time::Duration::from_millis(30);
            let transfers = work(&order).await;
            assert!(
                transfers.iter().all(|transfer| fault(transfer) == "STALL"),
                "{transfers:?}"
            );
        }
    });
}

#[test]
fn a_way_without_udp_is_no_way_for_version_3() {
    block_on(async {
        let (_listener, address) = listen().await;
        let mut order = order(fetches(3, 1, false), Ports::default());
        order.way = Way::Http { address };
        assert!(
            work(&order)
                .await
                .iter()
                .all(|transfer| fault(transfer) == "MISC")
        );
    });
}

#[test]
fn the_client_writes_a_qlog_of_its_connection() {
    block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let mut order = order(fetches(3, 1, false), serve());
        order.qlog = Some(directory.path().join("qlog"));
        assert_complete(&work(&order).await);
        let files: Vec<_> = std::fs::read_dir(directory.path().join("qlog"))
            .unwrap()
            .collect();
        assert_eq!(files.len(), 1);
    });
}

#[test]
fn an_upload_over_version_3_is_checked_by_the_server_with_any_congestion_control() {
    block_on(async {
        let ports = serve();
        for congestion in [Congestion::Cubic, Congestion::Bbr, Congestion::Newreno] {
            let kind = Kind::Http {
                version: 3,
                bytes: 300_000,
                count: 2,
                parallel: 1,
                fresh: true,
                upload: true,
                tuning: Tuning {
                    congestion,
                    packet: 1200,
                },
            };
            for transfer in work(&order(kind, ports)).await {
                assert_eq!(transfer.error, None);
                assert_eq!(transfer.moved, [300_000, 0]);
                assert_eq!(transfer.phases.deciles.len(), 9);
                let phases = &transfer.phases;
                assert!(phases.command <= phases.last_byte && phases.last_byte.is_some());
            }
        }
    });
}
