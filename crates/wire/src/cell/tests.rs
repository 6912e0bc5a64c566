use std::ops::Range;

use proptest::prelude::*;

use super::*;

/// Reads a whole input cut into pieces; the error, if any, ends it.
fn read(mut reader: Reader, bytes: &[u8], piece: usize) -> (Vec<Cell>, Option<Malformed>, Reader) {
    let mut cells = Vec::new();
    for chunk in bytes.chunks(piece.max(1)) {
        reader.push(BytesMut::from(chunk));
        loop {
            match reader.next() {
                Ok(Some(cell)) => cells.push(cell),
                Ok(None) => break,
                Err(error) => return (cells, Some(error), reader),
            }
        }
    }
    (cells, None, reader)
}

fn cell(circuit: u32, command: Command, bytes: &[u8]) -> Cell {
    Cell::new(CircuitId::new(circuit), command, |out| {
        out.put_slice(bytes);
    })
    .expect("it fits")
}

fn written(cells: &[Cell]) -> BytesMut {
    let mut out = BytesMut::new();
    cells
        .iter()
        .for_each(|cell| write(cell, &mut out).expect("it fits"));
    out
}

#[test]
fn commands_are_those_of_the_specification() {
    let specified: [(u8, &str); 18] = [
        (0, "PADDING"),
        (1, "CREATE"),
        (2, "CREATED"),
        (3, "RELAY"),
        (4, "DESTROY"),
        (5, "CREATE_FAST"),
        (6, "CREATED_FAST"),
        (7, "VERSIONS"),
        (8, "NETINFO"),
        (9, "RELAY_EARLY"),
        (10, "CREATE2"),
        (11, "CREATED2"),
        (12, "PADDING_NEGOTIATE"),
        (128, "VPADDING"),
        (129, "CERTS"),
        (130, "AUTH_CHALLENGE"),
        (131, "AUTHENTICATE"),
        (132, "AUTHORIZE"),
    ];
    let ours: Vec<_> = Command::KNOWN
        .iter()
        .map(|(known, name)| (known.0, *name))
        .collect();
    assert_eq!(ours, specified);
    for number in 0..=255 {
        let variable = number == 7 || number >= 128;
        assert_eq!(Command(number).is_variable(), variable, "{number}");
    }
    assert_eq!(format!("{:?}", Command::CERTS), "CERTS");
    assert_eq!(format!("{:?}", Command(99)), "Command(99)");
}

#[test]
fn a_versions_cell_has_a_circuit_id_of_two_bytes_and_no_padding() {
    let versions = handshake::Versions(vec![4, 5]);
    let cell = Cell::new(CircuitId::CHANNEL, Command::VERSIONS, |out| {
        versions.write(out);
    });
    let bytes = written(&[cell.unwrap()]);
    assert_eq!(bytes[..], [0, 0, 7, 0, 4, 0, 4, 0, 5]);
}

#[test]
fn a_cell_of_fixed_length_has_514_bytes_and_is_filled_with_zeros() {
    let destroy = Cell::new(CircuitId::new(0x8000_0102), Command::DESTROY, |out| {
        circuit::DestroyReason::FINISHED.write(out);
    });
    let bytes = written(&[destroy.unwrap()]);
    assert_eq!(bytes.len(), LEN);
    assert_eq!(bytes[..6], [0x80, 0, 1, 2, 4, 9]);
    assert!(bytes[6..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_cell_of_variable_length_says_its_length_behind_four_bytes_of_circuit_id() {
    let bytes = written(&[cell(0, Command::VPADDING, &[7; 258])]);
    assert_eq!(bytes[..7], [0, 0, 0, 0, 128, 1, 2]);
    assert_eq!(bytes[7..], [7; 258]);
}

#[test]
fn what_does_not_fit_a_cell_is_refused_and_not_written() {
    let too_long = |command, bytes: usize| {
        Cell::new(CircuitId::new(1), command, |out| out.put_bytes(1, bytes))
    };
    let error = Err(Malformed("length of a cell"));
    assert_eq!(too_long(Command::CREATE2, BODY + 1), error);
    assert_eq!(too_long(Command::CERTS, 65_536), error);
    assert!(too_long(Command::CERTS, 65_535).is_ok());
    let mut short = cell(1, Command::RELAY, b"");
    short.body.truncate(BODY - 1);
    let mut out = BytesMut::from(&b"before"[..]);
    assert_eq!(write(&short, &mut out), Err(Malformed("length of a cell")));
    assert_eq!(out[..], b"before"[..]);
    assert!(short.fixed().is_err());
}

#[test]
fn circuit_ids_grow_to_four_bytes_behind_the_first_versions_cell() {
    let bytes = [
        &[0, 0, 128, 0, 1, 9][..],
        &[0, 0, 7, 0, 2, 0, 4],
        &[0, 0, 0, 0, 7, 0, 2, 0, 5],
        &written(&[cell(0x8000_0001, Command::CREATED2, b"x")]),
    ]
    .concat();
    for piece in [1, 5, 300, bytes.len()] {
        let (cells, error, mut reader) = read(Reader::new(LARGEST_VARIABLE), &bytes, piece);
        let commands: Vec<_> = cells.iter().map(|cell| cell.command).collect();
        assert_eq!(
            commands,
            [
                Command::VPADDING,
                Command::VERSIONS,
                Command::VERSIONS,
                Command::CREATED2
            ]
        );
        assert_eq!(cells[3].circuit.number(), 0x8000_0001);
        assert!(cells[3].circuit.is_initiators() && cells[0].circuit.is_channel());
        assert_eq!((error, reader.pending()), (None, 0));
        assert_eq!(reader.next(), Ok(None));
    }
}

#[test]
fn the_head_is_told_as_it_came_for_the_hashes_of_the_handshake() {
    let mut reader = Reader::new(LARGEST_VARIABLE);
    let bytes = [
        &[0, 0, 128, 0, 1, 9][..],
        &[0, 0, 7, 0, 2, 0, 4],
        &[0, 0, 0, 0, 129, 0, 1, 0],
    ];
    for one in bytes {
        reader.push(BytesMut::from(one));
        let cell = reader.next().unwrap().expect("a whole cell");
        assert_eq!([reader.head(), &cell.body].concat(), one);
    }
}

#[test]
fn a_cell_of_variable_length_beyond_the_bound_ends_the_channel_before_it_is_kept() {
    let bytes = [
        &written(&[cell(5, Command::RELAY, b"fine")])[..],
        &[0, 0, 0, 0, 129, 0, 101],
        &[0; 90],
    ]
    .concat();
    for piece in [1, 600, bytes.len()] {
        let (cells, error, mut reader) = read(Reader::wide(100), &bytes, piece);
        assert_eq!(cells.len(), 1);
        assert_eq!(error, Some(Malformed("length of a cell")));
        reader.push(written(&[cell(5, Command::RELAY, b"later")]));
        assert!(reader.next().is_err(), "ever after");
    }
    let (cells, error, _) = read(
        Reader::wide(101),
        &[&bytes[LEN..], &[0; 11]].concat(),
        usize::MAX,
    );
    assert_eq!((cells.len(), error), (1, None));
}

#[test]
fn bodies_stay_in_the_buffer_that_they_came_in_unless_detached() {
    let bytes = written(&[cell(1, Command::RELAY, b"a"), cell(2, Command::RELAY, b"b")]);
    let range: Range<*const u8> = bytes.as_ptr_range();
    let mut reader = Reader::wide(LARGEST_VARIABLE);
    reader.push(bytes);
    for id in [1, 2] {
        let mut cell = reader.next().unwrap().expect("it is there");
        assert_eq!(cell.circuit.number(), id);
        assert!(range.contains(&cell.body.as_ptr()));
        let body = cell.body.clone();
        cell.detach();
        assert_eq!(cell.body, body);
        assert!(!range.contains(&cell.body.as_ptr()));
    }
}

#[test]
fn an_end_inside_a_cell_is_noticed() {
    let bytes = written(&[cell(1, Command::RELAY, b"a")]);
    for cut in [1, 4, 5, 6, LEN - 1] {
        let (cells, error, reader) = read(Reader::wide(9), &bytes[..cut], 3);
        assert_eq!((cells.len(), error), (0, None));
        assert_eq!((reader.pending(), reader.is_between_cells()), (cut, false));
    }
    let (_, _, reader) = read(Reader::wide(9), &bytes, 3);
    assert!(reader.is_between_cells());
}

#[test]
fn the_bytes_of_a_cell_are_not_told_to_logs() {
    let text = format!("{:?}", cell(7, Command::RELAY, b"secret"));
    assert_eq!(text, "Cell { circuit: 7, command: RELAY, bytes: 509 }");
}

fn any_cell() -> impl Strategy<Value = Cell> {
    let body = proptest::collection::vec(any::<u8>(), 0..BODY);
    (any::<u32>(), any::<u8>(), body).prop_filter_map("no VERSIONS", |(id, command, bytes)| {
        let versions = command == Command::VERSIONS.0;
        (!versions).then(|| cell(id, Command(command), &bytes))
    })
}

proptest! {
    #[test]
    fn what_was_written_is_read_back_however_it_is_cut(cells in proptest::collection::vec(any_cell(), 0..12), piece in 1_usize..1200) {
        let (read, error, reader) = read(Reader::wide(LARGEST_VARIABLE), &written(&cells), piece);
        prop_assert_eq!(error, None);
        prop_assert_eq!(read, cells);
        prop_assert_eq!(reader.pending(), 0);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic_to_the_same_end(bytes: Vec<u8>, piece in 1_usize..40) {
        let whole = read(Reader::new(300), &bytes, usize::MAX);
        let cut = read(Reader::new(300), &bytes, piece);
        prop_assert_eq!((whole.0, whole.1), (cut.0, cut.1));
        if whole.1.is_none() {
            prop_assert_eq!(whole.2.pending(), cut.2.pending());
        }
    }

    #[test]
    fn pushes_that_come_before_the_last_is_read_lose_nothing(cells in proptest::collection::vec(any_cell(), 1..6), piece in 1_usize..700) {
        let mut reader = Reader::wide(LARGEST_VARIABLE);
        written(&cells).chunks(piece).for_each(|chunk| reader.push(BytesMut::from(chunk)));
        for cell in cells {
            prop_assert_eq!(reader.next(), Ok(Some(cell)));
        }
        prop_assert_eq!(reader.next(), Ok(None));
    }
}
