//! Formats lines of cells, with each column as wide as its widest cell.

/// The table of these lines; the first one is the head.
pub(super) fn columns<const N: usize>(lines: &[[String; N]]) -> String {
    let width = |at: usize| lines.iter().map(|cells| cells[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for cells in lines {
        let padded: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(padded.join(" | ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_below_each_other() {
        let lines = [["bench", ""], ["x", "12 µs"]].map(|cells| cells.map(str::to_owned));
        assert_eq!(columns(&lines), "bench |\nx     | 12 µs\n");
    }
}
