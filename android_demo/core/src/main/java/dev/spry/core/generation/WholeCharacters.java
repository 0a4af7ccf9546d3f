package dev.spry.core.generation;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharsetDecoder;
import java.nio.charset.CoderResult;
import java.nio.charset.StandardCharsets;

/** From bytes of UTF-8, as they come, to characters; one stands for bytes that are none, as tokenizers have it. */
final class WholeCharacters {
    private static final char NONE = '\ufffd';
    private static final int LONGEST = 4; // bytes of a character
    private final CharsetDecoder decoder = StandardCharsets.UTF_8.newDecoder();
    private byte[] open = new byte[0];

    /** What more bytes complete; of the last, what is left. */
    String read(byte[] more, boolean ends) {
        ByteBuffer in = ByteBuffer.allocate(open.length + more.length);
        in.put(open).put(more).flip();
        CharBuffer out = CharBuffer.allocate(in.remaining() + LONGEST);
        CoderResult result = decoder.decode(in, out, ends);
        while (result.isError()) {
            out.put(NONE);
            in.position(in.position() + (beginsSurrogate(in) ? 1 : result.length()));
            result = decoder.decode(in, out, ends);
        }
        open = new byte[in.remaining()];
        in.get(open);
        out.flip();
        return out.toString();
    }

    /** What would be half of a pair: to Java all of it is one error, elsewhere its first byte is. */
    private static boolean beginsSurrogate(ByteBuffer in) {
        int at = in.position();
        return in.remaining() > 1 && (in.get(at) & 0xff) == 0xed && (in.get(at + 1) & 0xff) >= 0xa0;
    }
}
