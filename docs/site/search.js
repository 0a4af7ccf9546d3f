// The search takes each word for the beginning of another, and some signs for commands: in a message that somebody pasted,
// "no" would bury what it is about under all pages with "noise". Of a message its longer words are looked for.
"use strict";

const QUERY = 2; // the kind of message by which the page asks the search's worker
const SHORT = 3;
const post = Worker.prototype.postMessage;

Worker.prototype.postMessage = function (message, ...rest) {
  if (message && message.type === QUERY && typeof message.data === "string") {
    const words = message.data.split(/[^\p{L}\p{N}_]+/u).filter((word) => word.length > SHORT);
    if (words.length > 1) {
      message = { ...message, data: words.join(" ") };
    }
  }
  return post.call(this, message, ...rest);
};
