/**
 * An iteration whose `return` also ends a pending `next`. The `return` of a plain generator waits for it.
 *
 * @param generate Its signal aborts at the `return`. The generator then ends its wait, and itself.
 */
export function endable<T>(
  generate: (end: AbortSignal) => AsyncGenerator<T, void, undefined>,
): AsyncGenerator<T, void, undefined> {
  const end = new AbortController();
  const generator = generate(end.signal);
  const finish = generator.return.bind(generator);
  generator.return = (value) => {
    end.abort();
    return finish(value);
  };
  return generator;
}
