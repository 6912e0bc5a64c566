//! Plain tables for people: numbers to the right, words to the left, two spaces between columns.
//! `demo` and `bench` print them.

/// Rows under a heading.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column headings.
    pub(crate) fn new(heading: &[&str]) -> Self {
        Self {
            rows: vec![heading.iter().map(|cell| (*cell).to_owned()).collect()],
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as text, without a line break at its end.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let right: Vec<bool> = (0..columns).map(|i| self.is_numeric(i)).collect();
        let widths: Vec<usize> = (0..columns).map(|i| self.width(i)).collect();
        let lines = self.rows.iter().map(|row| line(row, &widths, &right));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn cells(&self, column: usize) -> impl Iterator<Item = &str> {
        self.rows
            .iter()
            .filter_map(move |row| Some(row.get(column)?.as_str()))
    }

    fn width(&self, column: usize) -> usize {
        self.cells(column)
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    }

    fn is_numeric(&self, column: usize) -> bool {
        let number = |cell: &str| {
            cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit() || c == '-')
        };
        self.cells(column).skip(1).all(number)
    }
}

fn line(row: &[String], widths: &[usize], right: &[bool]) -> String {
    let cells = row
        .iter()
        .zip(widths)
        .zip(right)
        .map(|((cell, &width), &right)| match right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right_and_words_to_the_left() {
        let mut table = Table::new(&["hops", "proto", "Gbit/s"]);
        table.row(vec!["0".into(), "tcp".into(), "12.50".into()]);
        table.row(vec!["10".into(), "udp".into(), "-".into()]);
        let expected = "hops  proto  Gbit/s\n   0  tcp     12.50\n  10  udp         -";
        assert_eq!(table.render(), expected);
    }
}
