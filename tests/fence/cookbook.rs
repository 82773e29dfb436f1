//! The statements of `docs/fencing.md`, so that the tests run the published text.

const PAGE: &str = include_str!("../../docs/fencing.md");

/// The code block that starts with the comment `-- {named}`.
pub fn statement(named: &str) -> &'static str {
    let mut blocks = PAGE.split("```").skip(1).step_by(2);
    let block = blocks.find(|block| block.lines().nth(1).is_some_and(|line| line.trim_end() == format!("-- {named}")));
    let block = block.unwrap_or_else(|| panic!("docs/fencing.md has no block {named:?}"));
    block.split_once('\n').expect("the language has a separate line").1
}
