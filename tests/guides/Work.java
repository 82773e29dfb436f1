import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** The work of work.py for Java programs. The kernel unlocks {@code resource} if the process is killed. */
final class Report {
    private static final String NAME = System.getenv("GUIDE_NAME");

    static void write() throws IOException, InterruptedException {
        try (FileChannel resource = FileChannel.open(
                Path.of("resource"), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
            FileLock lock = resource.tryLock();
            String company = lock == null ? "overlap" : "alone";
            report("start", company);
            while (!Files.exists(Path.of("finish-" + NAME))) {
                Thread.sleep(10);
            }
            report("end", company);
        }
    }

    /** Appends one line. The time is that of CLOCK_MONOTONIC, as in work.py. */
    private static void report(String kind, String company) throws IOException {
        String line = String.join(" ", NAME, kind, company, "-", String.valueOf(System.nanoTime() / 1e9)) + "\n";
        Files.writeString(Path.of("events"), line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }
}

final class Billing {
    static void lead() throws IOException, InterruptedException {
        Report.write();
    }
}
