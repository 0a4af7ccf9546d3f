package dev.spry.core;

import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;

/** What this process takes, as the kernel tells; 0 where it does not. */
public final class Memory {
    private Memory() {
    }

    /** Bytes now. */
    public static long resident() {
        return status("VmRSS:");
    }

    /** The most since the last reset. */
    public static long peak() {
        return status("VmHWM:");
    }

    static void resetPeak() {
        try (OutputStream file = new FileOutputStream("/proc/self/clear_refs")) {
            file.write('5');
        } catch (IOException error) {
            return; // the peak is then that of the whole process's life
        }
    }

    private static long status(String field) {
        try (BufferedReader file = new BufferedReader(
                new InputStreamReader(new FileInputStream("/proc/self/status"), StandardCharsets.US_ASCII))) {
            for (String line = file.readLine(); line != null; line = file.readLine()) {
                if (line.startsWith(field)) {
                    return Long.parseLong(line.replaceAll("\\D", "")) * 1024;
                }
            }
        } catch (IOException error) {
            return 0;
        }
        return 0;
    }
}
