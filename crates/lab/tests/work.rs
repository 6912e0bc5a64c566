//! The process of a workload's client: what it takes on stdin, what it says, how it ends.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{
    io::Write,
    net::TcpListener,
    process::{Command, Output, Stdio},
    time::Duration,
};

use hoplite_lab::experiments::workload::{Bulk, Kind, Order, Plan, Ports, Transfer, Way};

fn work(order: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_hoplite-lab"))
        .arg("__work")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(order.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn an_order_that_is_none_ends_with_2_and_says_what_is_wrong() {
    for order in ["", "{}", "nonsense"] {
        let output = work(order);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.starts_with("hoplite-lab: reading the order: "),
            "{said}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn transfers_that_fail_are_told_as_lines_and_the_process_ends_well() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let bulk = Bulk {
        bytes: 1000,
        time: Duration::ZERO,
        connections: 1,
        count: 3,
        pause: Duration::ZERO,
    };
    let order = Order {
        plan: Plan {
            name: "download".into(),
            group: "1".into(),
            at: Duration::ZERO,
            from: "client".into(),
            to: "server".into(),
            resolver: None,
            among: Vec::new(),
            direct: false,
            may_fail: false,
            counted_as: None,
            kind: Kind::Download(bulk),
            stall: Plan::STALL,
            timeout: Plan::TIMEOUT,
        },
        way: Way::Direct,
        target: "127.0.0.1".into(),
        fresh_names: false,
        nearest: Default::default(),
        ports: Ports {
            transfer: closed.port(),
            ..Ports::default()
        },
        seed: 1,
        qlog: None,
        interface: None,
        surroundings: None,
    };
    let output = work(&(serde_json::to_string(&order).unwrap() + "\n"));
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8(output.stdout).unwrap();
    let transfers: Vec<Transfer> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let numbers: Vec<_> = transfers.iter().map(|transfer| transfer.number).collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert!(
        transfers
            .iter()
            .all(|transfer| transfer.error.as_ref().unwrap().kind == "CONNECT")
    );
}
