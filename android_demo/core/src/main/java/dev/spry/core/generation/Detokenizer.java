package dev.spry.core.generation;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharsetDecoder;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;

import dev.spry.core.text.Tokenizer;

/** From tokens to text as they come: whole characters. */
final class Detokenizer {
    private static final int LONGEST = 4; // bytes of a character
    private final Tokenizer tokenizer;
    private final CharsetDecoder decoder = StandardCharsets.UTF_8.newDecoder()
            .onMalformedInput(CodingErrorAction.REPLACE).onUnmappableCharacter(CodingErrorAction.REPLACE);
    private byte[] open = new byte[0];

    Detokenizer(Tokenizer tokenizer) {
        this.tokenizer = tokenizer;
    }

    /** What a token adds; nothing while a character's bytes are not all there. */
    String add(int token) {
        return read(tokenizer.bytes(token), false);
    }

    /** What was held back, when no token follows. */
    String flush() {
        return read(new byte[0], true);
    }

    private String read(byte[] more, boolean ends) {
        ByteBuffer in = ByteBuffer.allocate(open.length + more.length);
        in.put(open).put(more).flip();
        CharBuffer out = CharBuffer.allocate(in.remaining() + LONGEST);
        decoder.decode(in, out, ends);
        open = new byte[in.remaining()];
        in.get(open);
        out.flip();
        return out.toString();
    }
}
