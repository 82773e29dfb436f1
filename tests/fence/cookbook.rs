//! The statements of `docs/fencing.md`: what is tested is what is printed there.

const PAGE: &str = include_str!("../../docs/fencing.md");

/// The code block whose first line has this in a comment.
pub fn statement(named: &str) -> &'static str {
    let mut blocks = PAGE.split("```").skip(1).step_by(2);
    let block = blocks.find(|block| block.lines().nth(1).is_some_and(|line| line.trim_end() == format!("-- {named}")));
    let block = block.unwrap_or_else(|| panic!("docs/fencing.md has no block {named:?}"));
    block.split_once('\n').expect("the language is on a line of its own").1
}
