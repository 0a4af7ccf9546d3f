package dev.spry.core.sums;

import dev.spry.core.BadAnswerException;

/** Where a sum stands for one device. */
public final class View {
    /** What a sum goes through. */
    public enum Stage {
        CARD, SHARES, UPDATE, VOW, OPENING, OVER
    }

    public final Stage stage;
    /** Seconds until another look is worth while. */
    public final double wait;
    public final byte[] body;

    public View(byte[] data) {
        Reader reader = new Reader(data);
        int number = reader.one();
        wait = reader.four() / 1000.0;
        if (number >= Stage.values().length) {
            throw new BadAnswerException(
                    "the server is at stage " + number + " of a sum, which this device does not know: upgrade spry");
        }
        stage = Stage.values()[number];
        body = reader.rest();
    }
}
